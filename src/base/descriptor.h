#pragma once

#include <unistd.h>

#include <utility>

namespace dfa {

// A file descriptor that is closed unless somebody takes it.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  bool close() {  // false where the system says that what was written may be lost
    const int fd = release();
    return fd < 0 || ::close(fd) == 0;
  }
  void reset(int fd) {
    close();
    fd_ = fd;
  }

 private:
  int fd_;
};

}  // namespace dfa
