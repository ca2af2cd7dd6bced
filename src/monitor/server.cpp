#include "monitor/server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "dfa/error.h"

namespace dfa::monitor {
namespace {

constexpr double kPatience = 2;            // seconds for one request
constexpr std::size_t kLongest = 8 << 10;  // bytes of one

struct Place {
  std::string host, port;
};

Place parse(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  Place place{"127.0.0.1", address};
  if (colon != std::string::npos) {
    if (colon > 0) place.host = address.substr(0, colon);
    place.port = address.substr(colon + 1);
  }
  if (place.host.starts_with('[') && place.host.ends_with(']')) {
    place.host = place.host.substr(1, place.host.size() - 2);
  }
  const bool digits = !place.port.empty() && place.port.size() <= 5 &&
                      std::all_of(place.port.begin(), place.port.end(),
                                  [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!digits || std::stoi(place.port) > 65535) {
    throw InvalidArgument("--listen '" + address +
                          "'; accepted: HOST:PORT, e.g. 127.0.0.1:9400, or a port for loopback");
  }
  return place;
}

int listen_at(const Place& place, const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found);
  if (error != 0) {
    throw InvalidArgument(
        fmt::format("--listen '{}': {}; accepted: HOST:PORT", address, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, ::freeaddrinfo);
  const int listener = ::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (listener >= 0) ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (listener < 0 || ::bind(listener, list->ai_addr, list->ai_addrlen) != 0 ||
      ::listen(listener, 16) != 0) {
    const std::string why = std::strerror(errno);
    if (listener >= 0) ::close(listener);
    throw IoError(
        fmt::format("cannot listen at '{}': {}; --listen takes another HOST:PORT", address, why));
  }
  return listener;
}

int port_of(int listener) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size);
  return name.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6&>(name).sin6_port)
                                    : ntohs(reinterpret_cast<sockaddr_in&>(name).sin_port);
}

// Waits until the connection can be read, or patience ends.
bool readable(int connection, double until_s) {
  const double left = until_s - monotonic_s();
  pollfd wait{connection, POLLIN, 0};
  return left > 0 && ::poll(&wait, 1, static_cast<int>(left * 1e3) + 1) == 1;
}

// Up to the empty line that ends a request's head.
std::string read_head(int connection) {
  const double until_s = monotonic_s() + kPatience;
  std::string head;
  std::array<char, 1024> bytes{};
  while (head.find("\r\n\r\n") == std::string::npos && head.size() < kLongest) {
    if (!readable(connection, until_s)) return "";
    const ssize_t got = ::recv(connection, bytes.data(), bytes.size(), 0);
    if (got <= 0) return "";
    head.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return head;
}

std::string reply(const char* status, const char* type, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, type, body.size(), body);
}

constexpr const char* kPlain = "text/plain; charset=utf-8";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

Server::Server(const std::string& address, std::function<std::string()> metrics)
    : metrics_(std::move(metrics)) {
  const Place place = parse(address);
  listener_ = listen_at(place, address);
  const bool v6 = place.host.find(':') != std::string::npos;
  address_ = fmt::format("{}:{}", v6 ? "[" + place.host + "]" : place.host, port_of(listener_));
  if (::pipe(wake_) != 0) {
    ::close(listener_);
    throw IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  thread_ = std::thread([this] { serve(); });
}

Server::~Server() {
  ::close(wake_[1]);
  thread_.join();
  ::close(wake_[0]);
  ::close(listener_);
}

void Server::serve() {
  for (;;) {
    pollfd waits[] = {{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[1].revents != 0) return;
    if ((waits[0].revents & POLLIN) == 0) continue;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    const timeval patience{static_cast<time_t>(kPatience), 0};
    ::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    answer(connection);
    ::shutdown(connection, SHUT_RDWR);
    ::close(connection);
  }
}

void Server::answer(int connection) {
  const std::string head = read_head(connection);
  if (head.empty()) return;
  const std::string_view line = std::string_view(head).substr(0, head.find("\r\n"));
  std::string text;
  if (!line.starts_with("GET ")) {
    text = reply("405 Method Not Allowed", kPlain, "GET /metrics\n");
  } else if (line.starts_with("GET /metrics ") || line.starts_with("GET /metrics?")) {
    text = reply("200 OK", kMetricsType, metrics_());
  } else if (line.starts_with("GET / ")) {
    text = reply("200 OK", kPlain, "dfa monitor: see /metrics\n");
  } else {
    text = reply("404 Not Found", kPlain, "GET /metrics\n");
  }
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t sent = ::send(connection, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
}

}  // namespace dfa::monitor
