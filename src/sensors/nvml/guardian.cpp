#include "sensors/nvml/guardian.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

namespace dfa::nvml {
namespace {

constexpr std::size_t kLongest = 1024;
constexpr const char* kGone =
    "the process that guards the card's settings has ended; the next --allow-privileged puts the "
    "card back";

// The other process: answers requests until nobody is left to ask.
class Servant {
 public:
  explicit Servant(int connection) : connection_(connection) {}

  void serve() {
    std::array<char, kLongest> text{};
    for (;;) {
      const ssize_t got = ::recv(connection_, text.data(), text.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;  // levers_ restores
      const std::string reply = answer(std::string(text.data(), static_cast<std::size_t>(got)));
      ::send(connection_, reply.data(), std::min(reply.size(), kLongest), MSG_NOSIGNAL);
    }
  }

 private:
  std::string answer(const std::string& request) {
    std::istringstream in(request);
    std::string what, card;
    double a = 0, b = 0;
    in >> what;
    if (what == "open" && in >> card) return open(card);
    if (what == "restore") return levers_ ? text_of(levers_->restore()) : "ok";
    if (!levers_) return "no card is open";
    if (what == "limit" && in >> a) return text_of(levers_->set_power_limit(a));
    if (what == "clocks" && in >> a >> b) return text_of(levers_->lock_clocks(a, b));
    return "no '" + request + "' is not a request";
  }

  std::string open(const std::string& card) {
    const OpenedLibrary opened = open_library();
    if (!opened.library) return "no " + opened.status.reason;
    const auto device = find_device(opened.library, card);
    if (!device.value) return "no " + device.status.reason;
    auto taken = OwnerLevers::open(*device.value);
    if (!taken.levers) return "no " + taken.status.reason;
    levers_ = std::move(taken.levers);
    const PowerLimits& limits = levers_->limits();
    return fmt::format("ok {} {} {}", limits.found_w, limits.least_w, limits.most_w);
  }

  static std::string text_of(const Verdict& verdict) {
    return verdict ? "ok" : "no " + verdict.reason;
  }

  int connection_;
  std::unique_ptr<OwnerLevers> levers_;
};

// A terminal's signals go to the whole group, and this one has to outlive whoever they are for.
[[noreturn]] void live_as_guardian(int connection) {
  ::setsid();
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(ignored, SIG_IGN);
  ::prctl(PR_SET_NAME, "dfa-guardian");
  Servant(connection).serve();
  ::_exit(0);
}

}  // namespace

Guardian::Guardian() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Unsupported(fmt::format("no guardian: socketpair: {}", std::strerror(errno)));
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    live_as_guardian(ends[1]);
  }
  ::close(ends[1]);
  connection_ = ends[0];
  if (pid_ < 0) {
    ::close(connection_);
    throw Unsupported(fmt::format("no guardian: fork: {}", std::strerror(errno)));
  }
}

Guardian::~Guardian() { static_cast<void>(end()); }

Verdict Guardian::send(const std::string& request) {
  if (connection_ < 0) return Verdict::no(kGone);
  if (::send(connection_, request.data(), request.size(), MSG_NOSIGNAL) >= 0) {
    return Verdict::yes();
  }
  if (errno == EPIPE || errno == ECONNRESET) return Verdict::no(kGone);
  return Verdict::no(fmt::format("the guardian does not listen: {}", std::strerror(errno)));
}

Value<std::string> Guardian::answer(int flags) {
  std::array<char, kLongest> text{};
  ssize_t got = 0;
  do {
    got = ::recv(connection_, text.data(), text.size(), flags);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return {std::nullopt, Verdict::no(kGone)};
  const std::string reply(text.data(), static_cast<std::size_t>(got));
  if (reply.starts_with("no ")) return {std::nullopt, Verdict::no(reply.substr(3))};
  return {reply.size() > 3 ? reply.substr(3) : std::string(), Verdict::yes()};
}

// What is there of the answers that nobody waited for.
void Guardian::collect() {
  while (owed_ > 0) {
    const auto reply = answer(0);
    --owed_;
    if (!reply.value && refused_) refused_ = reply.status;
  }
}

Value<std::string> Guardian::ask(const std::string& request) {
  if (const Verdict sent = send(request); !sent) return {std::nullopt, sent};
  collect();
  return answer(0);
}

Value<PowerLimits> Guardian::open(const std::string& card) {
  const auto reply = ask("open " + card);
  if (!reply.value) return {std::nullopt, reply.status};
  PowerLimits limits;
  std::istringstream(*reply.value) >> limits.found_w >> limits.least_w >> limits.most_w;
  return {limits, {}};
}

Verdict Guardian::set_power_limit(double watts) {
  return ask(fmt::format("limit {}", watts)).status;
}

Verdict Guardian::lock_clocks(double least_hz, double most_hz) {
  return ask(fmt::format("clocks {} {}", least_hz, most_hz)).status;
}

void Guardian::request_power_limit(double watts) {
  const Verdict sent = send(fmt::format("limit {}", watts));
  if (sent) {
    ++owed_;
  } else if (refused_) {
    refused_ = sent;
  }
}

Verdict Guardian::end() {
  if (connection_ < 0) return refused_;
  const Verdict restored = ask("restore").status;
  ::close(connection_);
  connection_ = -1;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  return restored ? refused_ : restored;
}

}  // namespace dfa::nvml
