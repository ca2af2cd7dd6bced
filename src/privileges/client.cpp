#include "privileges/client.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/json_text.h"
#include "privileges/socket.h"

namespace dfa::privileges {
namespace {

constexpr const char* kGone = "the daemon of privileges has ended; the card is put back";

constexpr const char* kNone = "no card is lent to this connection";

std::optional<Range> range_of(const Json& json, double unit) {
  if (json.is_null()) return std::nullopt;
  return Range{json.at(0).get<double>() * unit, json.at(1).get<double>() * unit};
}

Offer offer_of(const Json& json) {
  return {.card = json.at("card").get<std::string>(),
          .uuid = json.at("uuid").get<std::string>(),
          .name = json.at("name").get<std::string>(),
          .limit_w = range_of(json.at("limit_w"), 1),
          .clock_hz = range_of(json.at("clock_mhz"), 1e6),
          .lease_s = json.at("lease_s").get<double>()};
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw Unsupported(fmt::format(
      "no daemon of privileges at '{}': {}; the card's owner starts one by dfa privileges serve",
      path.string(), why));
}

}  // namespace

Client::Client(const std::filesystem::path& socket, double patience_s)
    : path_(socket), socket_(connect_to(socket)) {
  if (!socket_.open()) refuse(socket, std::strerror(errno));
  const auto whole = std::floor(patience_s);
  const timeval patience{static_cast<time_t>(whole),
                         static_cast<suseconds_t>(1e6 * (patience_s - whole))};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const auto reply = ask({.op = Op::hello, .version = kVersion});
  if (!reply.value) refuse(socket, reply.status.reason);
  try {
    for (const Json& card : reply.value->at("cards")) offers_.push_back(offer_of(card));
  } catch (const Json::exception& error) {
    refuse(socket, std::string("what answers there is none: ") + error.what());
  }
}

Verdict Client::send(const Request& request) {
  const std::string line = to_line(to_json(request));
  if (line.size() > kMostRequest)
    return Verdict::no("a request of more bytes than a line may have");
  const ssize_t sent =
      socket_.open() ? ::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) : 0;
  return sent == static_cast<ssize_t>(line.size()) ? Verdict::yes() : Verdict::no(kGone);
}

sensors::Value<Json> Client::answer() {
  std::optional<std::string> line;
  while (!(line = lines_.next())) {
    if (lines_.overflows()) return {std::nullopt, Verdict::no("an answer without an end")};
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      socket_.close();  // a late answer would be taken for the next
      return {std::nullopt, Verdict::no("the daemon of privileges does not answer")};
    }
    if (got <= 0) return {std::nullopt, Verdict::no(kGone)};
    lines_.add({bytes.data(), static_cast<std::size_t>(got)});
  }
  try {
    Json json = parse_json(*line);
    if (json.at("ok").get<bool>()) return {std::move(json), {}};
    return {std::nullopt, Verdict::no(json.at("error").get<std::string>())};
  } catch (const std::exception& error) {
    return {std::nullopt, Verdict::no(std::string("an answer that is none: ") + error.what())};
  }
}

sensors::Value<Json> Client::ask(const Request& request) {
  const Verdict sent = send(request);
  // A daemon that refused this process said why before it closed the connection.
  if (!sent && owed_ == 0 && offers_.empty() && socket_.open()) return answer();
  if (!sent) return {std::nullopt, sent};
  for (; owed_ > 0; --owed_) {
    const auto reply = answer();
    if (!reply.value && refused_) refused_ = reply.status;
  }
  return answer();
}

sensors::Value<sensors::PowerLimits> Client::open(const std::string& card) {
  const auto reply = ask({.op = Op::lease, .card = card});
  if (!reply.value) return {std::nullopt, reply.status};
  try {
    card_ = reply.value->at("card").get<std::string>();
    clocks_hz_ = range_of(reply.value->at("clock_mhz"), 1e6);
    const Range limits = range_of(reply.value->at("limit_w"), 1).value_or(Range{});
    return {
        sensors::PowerLimits{reply.value->at("found_w").get<double>(), limits.least, limits.most},
        {}};
  } catch (const Json::exception& error) {
    return {std::nullopt, Verdict::no(std::string("an answer that is none: ") + error.what())};
  }
}

// A lease that ran out meanwhile is none to go on with: what it had set was put back.
Verdict Client::keep(double seconds) {
  if (card_.empty()) return Verdict::no(kNone);
  const auto reply = ask({.op = Op::lease, .card = card_, .seconds = seconds});
  if (!reply.value) return reply.status;
  const bool went_on = reply.value->value("renewed", false);
  return went_on ? Verdict::yes() : Verdict::no("the lease of " + card_ + " had run out before");
}

Verdict Client::set_power_limit(double watts) {
  if (card_.empty()) return Verdict::no(kNone);
  return ask({.op = Op::set, .card = card_, .limit_w = watts}).status;
}

Verdict Client::lock_clocks(double least_hz, double most_hz) {
  if (card_.empty()) return Verdict::no(kNone);
  return ask({.op = Op::set, .card = card_, .clock_hz = Range{least_hz, most_hz}}).status;
}

Verdict Client::unlock_clocks() {
  if (card_.empty()) return Verdict::no(kNone);
  return ask({.op = Op::set, .card = card_, .unlocks_clock = true}).status;
}

void Client::request(const Request& request) {
  const Verdict sent = card_.empty() ? Verdict::no(kNone) : send(request);
  if (sent) {
    ++owed_;
  } else if (refused_) {
    refused_ = sent;
  }
}

void Client::request_power_limit(double watts) {
  Request wanted{.op = Op::set, .card = card_, .frees_limit = !(watts > 0)};
  if (watts > 0) wanted.limit_w = watts;
  request(wanted);
}

void Client::request_clocks(double hz) {
  Request wanted{.op = Op::set, .card = card_, .unlocks_clock = !(hz > 0)};
  if (hz > 0) wanted.clock_hz = Range{hz, hz};
  request(wanted);
}

Verdict Client::end() {
  if (!socket_.open() || card_.empty()) return refused_;
  const Verdict restored = ask({.op = Op::restore, .card = card_}).status;
  socket_.close();
  return restored ? refused_ : restored;
}

}  // namespace dfa::privileges
