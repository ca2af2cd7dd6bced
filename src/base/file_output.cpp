#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/random.h"
#include "dfa/error.h"

namespace dfa {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const fs::path& path, const std::string& why) {
  throw IoError("cannot write '" + path.string() + "': " + why);
}

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  fail_to_write(path, std::strerror(error));
}

bool wait_for_room(int fd) {
  pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&room, 1, -1) >= 0 || errno == EINTR;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN && wait_for_room(fd)) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// A reader that went away is an error of the write, where SIGPIPE would end the program.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const int error = errno;
    const timespec now{};
    ::sigtimedwait(&pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

// N of /dev/fd/N and /proc/self/fd/N, by whatever folder link that is reached.
std::optional<int> descriptor_of(const fs::path& path) {
  const std::string name = path.filename().string();
  int number = 0;
  const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (name.empty() || bad != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  std::error_code no_folder, no_proc;
  const fs::path folder = fs::canonical(path.parent_path(), no_folder);
  const fs::path ours = fs::canonical("/proc/self/fd", no_proc);
  return !no_folder && !no_proc && folder == ours ? std::optional(number) : std::nullopt;
}

// Where a path leads.
struct Place {
  fs::path path;                    // with no link at its end, but for a stream's own
  std::optional<int> descriptor{};  // of this process
  bool stream = false;
};

Place find_place(const fs::path& path) {
  constexpr int kMostLinks = 40;  // of the kernel
  Place place{.path = path};
  struct stat found {};
  const bool there = ::stat(path.c_str(), &found) == 0;
  if (!there && errno == ELOOP) fail_to_write(path, ELOOP);
  for (int links = 0; links <= kMostLinks; ++links) {
    place.descriptor = descriptor_of(place.path);
    if (place.descriptor) break;
    std::error_code no_link;
    const fs::path next = fs::read_symlink(place.path, no_link);
    if (no_link) break;
    place.path = next.is_absolute() ? next : place.path.parent_path() / next;
  }
  place.stream =
      place.descriptor.has_value() || (there && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode));
  if (place.stream) place.path = path;
  return place;
}

void write_stream(const Place& place, std::string_view bytes) {
  if (place.descriptor == STDOUT_FILENO) std::fflush(stdout);  // what was printed comes first
  Descriptor to(place.descriptor ? ::fcntl(*place.descriptor, F_DUPFD_CLOEXEC, 0)
                                 : ::open(place.path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (!to.open()) fail_to_write(place.path, errno);
  const NoBrokenPipe quiet;
  if (!write_all(to.get(), bytes) || !to.close()) fail_to_write(place.path, errno);
}

// A new file beside the target that is unlinked unless it was renamed into place.
class Beside {
 public:
  Beside(const fs::path& target, mode_t mode) {
    constexpr std::size_t kNameBytes = 200;  // leaves room for the ending
    constexpr int kTries = 100;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    auto seed =
        static_cast<std::uint64_t>(now.tv_nsec) << 32 ^ static_cast<std::uint64_t>(::getpid());
    for (int i = 0; i < kTries && fd_ < 0; ++i) {
      seed = mix64(seed + static_cast<std::uint64_t>(i));
      path_ = target.parent_path() / (target.filename().string().substr(0, kNameBytes) + "." +
                                      std::to_string(seed % 1000000000));
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
      if (fd_ < 0 && errno != EEXIST) return;
    }
  }
  ~Beside() {
    const bool made = fd_ >= 0 || filled_;
    close();
    if (made && !renamed_) ::unlink(path_.c_str());
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  bool open() const { return fd_ >= 0; }

  // Mode and owner of the file that it stands in for.
  bool become(const struct stat& old) const {
    struct stat now {};
    if (::fstat(fd_, &now) != 0) return false;
    const bool same = now.st_uid == old.st_uid && now.st_gid == old.st_gid;
    return (same || ::fchown(fd_, old.st_uid, old.st_gid) == 0) &&
           ::fchmod(fd_, old.st_mode & 07777) == 0;
  }
  bool fill(std::string_view bytes) {
    filled_ = true;
    return write_all(fd_, bytes) && ::fsync(fd_) == 0 && close();
  }
  bool rename_to(const fs::path& target) {
    renamed_ = ::rename(path_.c_str(), target.c_str()) == 0;
    return renamed_;
  }

 private:
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return fd < 0 || ::close(fd) == 0;
  }

  fs::path path_;
  int fd_ = -1;
  bool filled_ = false, renamed_ = false;
};

// Keeps the file itself, its names and its owner; a full disk is found before the old text goes.
void write_in_place(const fs::path& path, const fs::path& target, std::string_view bytes,
                    off_t old_size) {
  Descriptor to(::open(target.c_str(), O_WRONLY | O_CLOEXEC));
  if (!to.open()) fail_to_write(path, errno);
  const auto size = static_cast<off_t>(bytes.size());
  const int full = size > old_size ? ::posix_fallocate(to.get(), 0, size) : 0;
  if (full != 0 && full != EOPNOTSUPP && full != EINVAL) {
    [[maybe_unused]] const int cut = ::ftruncate(to.get(), old_size);
    fail_to_write(path, full);
  }
  if (!write_all(to.get(), bytes) || ::ftruncate(to.get(), size) != 0 || ::fsync(to.get()) != 0 ||
      !to.close()) {
    fail_to_write(path, errno);
  }
}

// Errors of a folder where nothing can be made or renamed, whatever the file in it allows.
bool of_the_folder(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == EBUSY;
}

void write_regular(const fs::path& path, const fs::path& target, std::string_view bytes) {
  struct stat old {};
  const bool there = ::stat(target.c_str(), &old) == 0;
  const auto in_place = [&] { write_in_place(path, target, bytes, old.st_size); };
  if (there && old.st_nlink > 1) return in_place();
  Beside beside(target, there ? 0600 : 0666);
  if (!beside.open() && there && of_the_folder(errno)) return in_place();
  if (!beside.open()) fail_to_write(path, errno);
  if (there && !beside.become(old)) return in_place();
  if (!beside.fill(bytes)) fail_to_write(path, errno);
  if (beside.rename_to(target)) return;
  if (!there || !of_the_folder(errno)) fail_to_write(path, errno);
  in_place();
}

bool writable(const fs::path& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

void require_stream(const Place& place) {
  if (!place.descriptor) {
    if (!writable(place.path)) fail_to_write(place.path, errno);
    return;
  }
  const int flags = ::fcntl(*place.descriptor, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
    fail_to_write(place.path, "this descriptor is not open for writing");
  }
}

void require_regular(const fs::path& path, const fs::path& target) {
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error))
    fail_to_write(path, "'" + folder.string() + "' is not a folder");
  if (fs::is_directory(target, error) || !target.has_filename())
    fail_to_write(path, "it is a folder");
  if (!writable(fs::exists(target, error) ? target : folder)) fail_to_write(path, errno);
}

}  // namespace

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  const Place place = find_place(path);
  if (place.stream) return write_stream(place, bytes);
  require_regular(path, place.path);
  write_regular(path, place.path, bytes);
}

void require_writable(const fs::path& path) {
  const Place place = find_place(path);
  if (place.stream) return require_stream(place);
  require_regular(path, place.path);
}

fs::path output_target(const fs::path& path) { return find_place(path).path; }

bool is_stream(const fs::path& path) { return find_place(path).stream; }

}  // namespace dfa
