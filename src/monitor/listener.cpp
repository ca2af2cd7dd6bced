#include "monitor/listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>

namespace dfa::monitor {
namespace {

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
  return place;
}

std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> look_up(const Place& place,
                                                             const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found);
  if (error != 0) {
    throw InvalidArgument(
        fmt::format("--listen '{}': {}; accepted: HOST:PORT", address, ::gai_strerror(error)));
  }
  return {found, ::freeaddrinfo};
}

int port_of(const Descriptor& listener) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &size);
  return name.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6&>(name).sin6_port)
                                    : ntohs(reinterpret_cast<sockaddr_in&>(name).sin_port);
}

}  // namespace

Verdict check_address(const std::string& address) {
  const std::string port = parse(address).port;
  const bool digits =
      !port.empty() && port.size() <= 5 &&
      std::all_of(port.begin(), port.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (digits && std::stoi(port) <= 65535) return Verdict::yes();
  return Verdict::no("'" + address +
                     "'; accepted: HOST:PORT, e.g. 127.0.0.1:9400, or a port for loopback; ports "
                     "are 0 to 65535");
}

Descriptor listen_at(const std::string& address) {
  if (const Verdict good = check_address(address); !good) {
    throw InvalidArgument("--listen " + good.reason);
  }
  const auto found = look_up(parse(address), address);
  Descriptor listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (listener.get() >= 0) {
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (listener.get() < 0 || ::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    throw IoError(fmt::format("cannot listen at '{}': {}; --listen takes another HOST:PORT",
                              address, std::strerror(errno)));
  }
  return listener;
}

std::string address_of(const Descriptor& listener, const std::string& address) {
  const std::string host = parse(address).host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}:{}", v6 ? "[" + host + "]" : host, port_of(listener));
}

}  // namespace dfa::monitor
