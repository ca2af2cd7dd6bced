#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "dfa/error.h"

namespace dfa::monitor {

// A file descriptor that is closed unless somebody takes it.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() { reset(-1); }
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// Whether listen_at() takes this text; else what it takes. Names are not looked up.
Verdict check_address(const std::string& address);

// A socket that listens and does not block. address: "127.0.0.1:9400", "[::1]:9400", a port alone
// for loopback; port 0 takes a free one. Throws InvalidArgument for another text, IoError where it
// cannot listen there.
Socket listen_at(const std::string& address);

// The address with the port that was taken.
std::string address_of(const Socket& listener, const std::string& address);

}  // namespace dfa::monitor
