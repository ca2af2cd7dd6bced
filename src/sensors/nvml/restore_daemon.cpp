#include "sensors/nvml/restore_daemon.h"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "sensors/gpu/clocks.h"

namespace dfa::nvml {
namespace {

constexpr std::size_t kLongest = 1024;
constexpr const char* kGone =
    "the process that guards the card's settings has ended; whoever opens it next puts it back";

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
    if (what == "identify" && in >> card) return identify(card);
    if (what == "has" && in >> card >> a >> b) return has_clock(card, {a, b});
    if (what == "open" && in >> card) return open(card);
    if (what == "restore") return levers_ ? text_of(levers_->restore()) : "ok";
    if (!levers_) return "no card is open";
    if (what == "limit" && in >> a) return text_of(levers_->set_power_limit(a));
    if (what == "free") return text_of(levers_->free_power_limit());
    if (what == "unlock") return text_of(levers_->unlock_clocks());
    if (what == "clocks" && in >> a >> b) return text_of(levers_->lock_clocks(a, b));
    return "no '" + request + "' is not a request";
  }

  std::string identify(const std::string& card) {
    const OpenedLibrary opened = open_library();
    if (!opened.library) return "no " + opened.status.reason;
    const auto device = find_device(opened.library, card);
    if (!device.value) return "no " + device.status.reason;
    const auto limits = read_power_limits(*device.value);
    if (!limits.value) return "no " + limits.status.reason;
    const DeviceFacts& facts = device.value->facts();
    return fmt::format("ok {} {} {} {} {} {}", or_dash(facts.pci_id), or_dash(facts.uuid),
                       limits.value->found_w, limits.value->least_w, limits.value->most_w,
                       facts.name);
  }

  static std::string has_clock(const std::string& card, const Range& hz) {
    const OpenedLibrary opened = open_library();
    if (!opened.library) return "no " + opened.status.reason;
    const auto device = find_device(opened.library, card);
    if (!device.value) return "no " + device.status.reason;
    return text_of(sensors::has_clock("clocks", hz, device.value->sm_clocks_hz()));
  }

  static std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

  std::string open(const std::string& card) {
    const OpenedLibrary opened = open_library();
    if (!opened.library) return "no " + opened.status.reason;
    const auto device = find_device(opened.library, card);
    if (!device.value) return "no " + device.status.reason;
    auto taken = PrivilegedControls::open(*device.value);
    if (!taken.levers) return "no " + taken.status.reason;
    levers_ = std::move(taken.levers);
    const PowerLimits& limits = levers_->limits();
    return fmt::format("ok {} {} {}", limits.found_w, limits.least_w, limits.most_w);
  }

  static std::string text_of(const Verdict& verdict) {
    return verdict ? "ok" : "no " + verdict.reason;
  }

  int connection_;
  std::unique_ptr<PrivilegedControls> levers_;
};

// A fork without an exec keeps everything open. A socket of this process's other restore daemon
// would keep that one from seeing its end, and a client's that client.
void close_all_but(int connection) {
  std::vector<int> open;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (const dirent* entry = ::readdir(folder)) open.push_back(std::atoi(entry->d_name));
    ::closedir(folder);
  }
  for (const int fd : open) {
    if (fd > STDERR_FILENO && fd != connection) ::close(fd);
  }
}

// A terminal's signals go to the whole group, and this one has to outlive whoever they are for.
[[noreturn]] void live_as_restorer(int connection) {
  ::setsid();
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(ignored, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::prctl(PR_SET_NAME, "dfa-restore");
  close_all_but(connection);
  Servant(connection).serve();
  ::_exit(0);
}

}  // namespace

RestoreDaemon::RestoreDaemon(double patience_s) : patience_s_(patience_s) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Unsupported(fmt::format("no restore daemon: socketpair: {}", std::strerror(errno)));
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    live_as_restorer(ends[1]);
  }
  ::close(ends[1]);
  connection_ = ends[0];
  if (pid_ < 0) {
    ::close(connection_);
    throw Unsupported(fmt::format("no restore daemon: fork: {}", std::strerror(errno)));
  }
  const auto whole = static_cast<time_t>(patience_s_);
  const timeval patience{
      whole, static_cast<suseconds_t>(1e6 * (patience_s_ - static_cast<double>(whole)))};
  ::setsockopt(connection_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(connection_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

RestoreDaemon::~RestoreDaemon() { static_cast<void>(end()); }

Verdict RestoreDaemon::send(const std::string& request, int flags) {
  if (connection_ < 0) return Verdict::no(kGone);
  if (::send(connection_, request.data(), request.size(), MSG_NOSIGNAL | flags) >= 0) {
    return Verdict::yes();
  }
  if (errno == EPIPE || errno == ECONNRESET) return Verdict::no(kGone);
  return Verdict::no(fmt::format("the restore daemon does not listen: {}", std::strerror(errno)));
}

Value<std::string> RestoreDaemon::answer() {
  std::array<char, kLongest> text{};
  ssize_t got = 0;
  do {
    got = ::recv(connection_, text.data(), text.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) {
    ++owed_;  // it comes later, and is none to what is asked next
    return {std::nullopt,
            Verdict::no(fmt::format("the driver did not answer for {:g} s", patience_s_))};
  }
  if (got <= 0) return {std::nullopt, Verdict::no(kGone)};
  const std::string reply(text.data(), static_cast<std::size_t>(got));
  if (reply.starts_with("no ")) return {std::nullopt, Verdict::no(reply.substr(3))};
  return {reply.size() > 3 ? reply.substr(3) : std::string(), Verdict::yes()};
}

// The answers that nobody waited for; not all of them where one does not come.
Verdict RestoreDaemon::collect() {
  while (owed_ > 0) {
    const int before = owed_--;
    const auto reply = answer();
    if (owed_ == before) return reply.status;
    if (!reply.value && refused_) refused_ = reply.status;
  }
  return Verdict::yes();
}

Value<std::string> RestoreDaemon::ask(const std::string& request) {
  if (const Verdict sent = send(request); !sent) return {std::nullopt, sent};
  if (const Verdict collected = collect(); !collected) {
    ++owed_;
    return {std::nullopt, collected};
  }
  return answer();
}

Value<CardIdentity> RestoreDaemon::identify(const std::string& card) {
  const auto reply = ask("identify " + card);
  if (!reply.value) return {std::nullopt, reply.status};
  CardIdentity known;
  std::istringstream in(*reply.value);
  in >> known.pci_id >> known.uuid >> known.limits.found_w >> known.limits.least_w >>
      known.limits.most_w >> std::ws;
  std::getline(in, known.name);
  for (std::string* id : {&known.pci_id, &known.uuid}) {
    if (*id == "-") id->clear();
  }
  return {known, {}};
}

Verdict RestoreDaemon::has_clock(const std::string& card, const Range& hz) {
  return ask(fmt::format("has {} {} {}", card, hz.least, hz.most)).status;
}

Value<PowerLimits> RestoreDaemon::open(const std::string& card) {
  const auto reply = ask("open " + card);
  if (!reply.value) return {std::nullopt, reply.status};
  PowerLimits limits;
  std::istringstream(*reply.value) >> limits.found_w >> limits.least_w >> limits.most_w;
  return {limits, {}};
}

Verdict RestoreDaemon::keep(double) {
  pollfd end{.fd = connection_, .events = POLLRDHUP, .revents = 0};
  const bool gone = connection_ < 0 || (::poll(&end, 1, 0) > 0 && (end.revents & ~POLLIN) != 0);
  return gone ? Verdict::no(kGone) : Verdict::yes();
}

Verdict RestoreDaemon::set_power_limit(double watts) {
  return ask(fmt::format("limit {}", watts)).status;
}

Verdict RestoreDaemon::lock_clocks(double least_hz, double most_hz) {
  return ask(fmt::format("clocks {} {}", least_hz, most_hz)).status;
}

Verdict RestoreDaemon::free_power_limit() { return ask("free").status; }
Verdict RestoreDaemon::unlock_clocks() { return ask("unlock").status; }

void RestoreDaemon::request(const std::string& text) {
  const Verdict sent = send(text, MSG_DONTWAIT);
  if (sent) {
    ++owed_;
  } else if (refused_) {
    refused_ = sent;
  }
}

void RestoreDaemon::request_power_limit(double watts) {
  request(watts > 0 ? fmt::format("limit {}", watts) : "free");
}

void RestoreDaemon::request_clocks(double hz) {
  request(hz > 0 ? fmt::format("clocks {} {}", hz, hz) : "unlock");
}

Verdict RestoreDaemon::end() {
  if (connection_ < 0) return refused_;
  const Verdict restored = ask("restore").status;
  const bool answers = owed_ == 0;
  ::close(connection_);
  connection_ = -1;
  while (::waitpid(pid_, nullptr, answers ? 0 : WNOHANG) < 0 && errno == EINTR) {
  }
  return restored ? refused_ : restored;
}

}  // namespace dfa::nvml
