#include "base/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "dfa/error.h"

namespace dfa {
namespace {

constexpr int kMostHolderBytes = 4096;

// The words of this process, from /proc, with spaces between.
std::string command_line() {
  constexpr std::size_t kShown = 200;
  std::string words;
  try {
    words = read_file("/proc/self/cmdline");
  } catch (const IoError&) {
    return "unknown";
  }
  while (!words.empty() && words.back() == '\0') words.pop_back();
  for (char& byte : words) byte = byte == '\0' || byte == '\n' ? ' ' : byte;
  return words.substr(0, kShown);
}

std::string holder_in(int fd) {
  std::string text(kMostHolderBytes, '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text.empty() ? "another process" : text;
}

// One that unlinks at its end may leave us the lock of a file that is no longer there.
bool still_at(const std::filesystem::path& path, int fd) {
  struct stat held {};
  struct stat found {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &found) == 0 &&
         held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

[[noreturn]] void fail_to_lock(int fd, const std::string& text) {
  if (fd >= 0) ::close(fd);
  throw IoError(text);
}

}  // namespace

LockFile::LockFile(std::filesystem::path path, const std::string& place) : path_(std::move(path)) {
  while (fd_ < 0) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) fail_to_lock(fd, "cannot lock '" + path_.string() + "': " + std::strerror(errno));
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      fd_ = fd;
      if (!still_at(path_, fd_)) ::close(std::exchange(fd_, -1));
    } else if (errno == EWOULDBLOCK) {
      fail_to_lock(fd, place + " is in use by " + holder_in(fd) +
                           "; accepted: another place, or this one when that has ended");
    } else if (errno != EINTR) {
      fail_to_lock(fd, "cannot lock '" + path_.string() + "': " + std::strerror(errno));
    } else {
      ::close(fd);
    }
  }
  const std::string holder = "process " + std::to_string(::getpid()) + " (" + command_line() +
                             ", since " + utc_now() + ")";
  [[maybe_unused]] const bool told =
      ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, holder.data(), holder.size(), 0) > 0;
}

LockFile::~LockFile() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace dfa
