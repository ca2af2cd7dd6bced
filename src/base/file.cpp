#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "dfa/error.h"

namespace dfa {
namespace {

// A temporary file that is unlinked unless it was renamed into place.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string pattern) : path_(std::move(pattern)) {
    fd_ = ::mkostemp(path_.data(), O_CLOEXEC);
  }
  ~TemporaryFile() {
    close();
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool open() const { return fd_ >= 0; }

  bool write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return ::fchmod(fd_, 0644) == 0 && ::fsync(fd_) == 0 && close();
  }

  bool rename_to(const std::string& target) {
    kept_ = ::rename(path_.c_str(), target.c_str()) == 0;
    return kept_;
  }

 private:
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return fd < 0 || ::close(fd) == 0;
  }

  std::string path_;
  int fd_ = -1;
  bool kept_ = false;
};

[[noreturn]] void fail(const char* action, const std::filesystem::path& path, int error) {
  throw IoError(std::string("cannot ") + action + " '" + path.string() +
                "': " + std::strerror(error));
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) fail("read", path, EISDIR);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail("read", path, errno);
  std::ostringstream bytes;
  if (stream.peek() != std::ifstream::traits_type::eof()) bytes << stream.rdbuf();
  if (stream.bad() || bytes.bad()) fail("read", path, EIO);
  return std::move(bytes).str();
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  if (std::filesystem::is_directory(path)) fail("write", path, EISDIR);
  TemporaryFile temporary(path.string() + ".XXXXXX");
  if (!temporary.open()) fail("write", path, errno);
  if (!temporary.write_all(bytes)) fail("write", path, errno);
  if (!temporary.rename_to(path.string())) fail("write", path, errno);
}

}  // namespace dfa
