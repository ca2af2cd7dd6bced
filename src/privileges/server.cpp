#include "privileges/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace dfa::privileges {
namespace {

constexpr double kAcceptPause = 1;  // s

bool send_all(int socket, const std::string& line) {
  const ssize_t sent = ::send(socket, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(line.size());
}

}  // namespace

Server::Server(Options options)
    : lock_(lock_for(options.socket)),
      broker_(std::move(options.grants), options.allow_file, options.log),
      listener_(options.socket, options.group),
      log_(std::move(options.log)) {}

void Server::run(int stop) {
  for (;;) {
    std::vector<pollfd> watched{{.fd = stop, .events = POLLIN, .revents = 0}};
    const bool accepts = accept_again_s_ <= monotonic_s();
    watched.push_back({.fd = accepts ? listener_.get() : -1, .events = POLLIN, .revents = 0});
    const std::vector<int> restorers = broker_.restorers();
    for (const int fd : restorers) watched.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    std::vector<int> numbers;
    for (const auto& [number, connection] : connections_) {
      numbers.push_back(number);
      // What has lines to be answered is not read: nothing piles up but in the system's buffer.
      const bool reads = !connection.ended && !connection.lines.has_line();
      const int fd = reads ? connection.socket.get() : -1;
      watched.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
    if (::poll(watched.data(), watched.size(), timeout_ms()) < 0) continue;
    if (watched[0].revents != 0) return;
    for (std::size_t i = 0; i < restorers.size(); ++i) {
      if (watched[2 + i].revents != 0) broker_.restorer_ended(restorers[i], monotonic_s());
    }
    more_ = false;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      Connection& connection = connections_.at(numbers[i]);
      if (watched[2 + restorers.size() + i].revents != 0) receive(connection);
      if (!answer_one(numbers[i], connection)) drop(numbers[i]);
    }
    if (watched[1].revents != 0) accept_all();
    broker_.tick(monotonic_s());
  }
}

int Server::timeout_ms() const {
  if (more_) return 0;
  double next = broker_.next_s().value_or(HUGE_VAL);
  if (accept_again_s_ > monotonic_s()) next = std::min(next, accept_again_s_);
  if (!std::isfinite(next)) return -1;
  return static_cast<int>(std::ceil(1e3 * std::clamp(next - monotonic_s(), 0.0, 1e6)));
}

void Server::accept_all() {
  for (;;) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.open()) {
      welcome(std::move(socket));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      if (errno == EAGAIN) return;
      log_(fmt::format("cannot accept a connection: {}", std::strerror(errno)));
      accept_again_s_ = monotonic_s() + kAcceptPause;
      return;
    }
  }
}

void Server::welcome(Descriptor socket) {
  const auto peer = peer_of(socket.get());
  Verdict welcome = peer.status;
  if (peer.value) {
    const auto theirs =
        std::count_if(connections_.begin(), connections_.end(),
                      [&](const auto& entry) { return entry.second.uid == peer.value->uid; });
    if (connections_.size() >= kMostClients || theirs >= static_cast<int>(kMostOfAUser)) {
      welcome = Verdict::no("too many connections");
    } else {
      welcome = broker_.enter(++last_, *peer.value);
    }
  }
  if (welcome) {
    connections_.emplace(last_, Connection{.socket = std::move(socket), .uid = peer.value->uid});
    return;
  }
  log_(peer.value ? fmt::format("process {} of user {} was refused: {}", peer.value->pid,
                                peer.value->uid, welcome.reason)
                  : "a process was refused: " + welcome.reason);
  send_all(socket.get(), to_line(refusal(welcome.reason)));
}

void Server::receive(Connection& connection) {
  std::array<char, kMostRequest> bytes{};
  const ssize_t got = ::recv(connection.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got > 0) {
    connection.lines.add({bytes.data(), static_cast<std::size_t>(got)});
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    connection.ended = true;
  }
}

// One line a round, so that nobody waits for a client that says much.
bool Server::answer_one(int number, Connection& connection) {
  if (const auto line = connection.lines.next()) {
    more_ = true;
    return send_all(connection.socket.get(), to_line(broker_.answer(number, *line, monotonic_s())));
  }
  if (!connection.lines.overflows()) return !connection.ended;
  send_all(connection.socket.get(),
           to_line(refusal(fmt::format("a line of more than {} bytes", kMostRequest))));
  return false;
}

void Server::drop(int number) {
  connections_.erase(number);
  broker_.leave(number, monotonic_s());
}

}  // namespace dfa::privileges
