#include "cuda/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace dfa::cuda {
namespace {

constexpr auto kStep = std::chrono::milliseconds(10);
constexpr auto kPatience = std::chrono::minutes(1);

bool lock(int fd) {
  for (auto waited = kStep * 0; waited < kPatience; waited += kStep) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    std::this_thread::sleep_for(kStep);
  }
  return false;
}

}  // namespace

FileLock::FileLock(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ >= 0 && !lock(fd_)) {
    ::close(fd_);
    fd_ = -1;
  }
}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());  // those who wait hold the old file and then find the kernel on disk
  ::close(fd_);
}

}  // namespace dfa::cuda
