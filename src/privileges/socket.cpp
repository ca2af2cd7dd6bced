#include "privileges/socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "dfa/error.h"

namespace dfa::privileges {
namespace {

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = path.string();
  if (text.empty() || text.size() >= sizeof address.sun_path) {
    throw InvalidArgument(fmt::format("--socket '{}'; accepted: a path of 1 to {} bytes", text,
                                      sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  return address;
}

[[noreturn]] void fail_to_listen(const std::filesystem::path& path, const std::string& why) {
  throw IoError(
      fmt::format("cannot listen at '{}': {}; --socket names another path", path.string(), why));
}

// A socket whose server was killed is still there.
void clear(const std::filesystem::path& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return;
  if (!S_ISSOCK(found.st_mode)) fail_to_listen(path, "something else is there");
  if (connect_to(path).open()) fail_to_listen(path, "another program listens there");
  if (errno != ECONNREFUSED) fail_to_listen(path, std::strerror(errno));
  ::unlink(path.c_str());
}

int bind_with_mode(int socket, const sockaddr_un& address, mode_t mode) {
  const mode_t before = ::umask(0777 & ~mode);
  const int bound = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(before);
  errno = error;
  return bound;
}

}  // namespace

LockFile lock_for(const std::filesystem::path& path) {
  address_of(path);
  return {path.string() + ".lock", "the socket '" + path.string() + "'"};
}

Listener::Listener(const std::filesystem::path& path, std::optional<gid_t> group)
    : path_(path), socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const sockaddr_un address = address_of(path);
  clear(path);
  if (!socket_.open() || bind_with_mode(socket_.get(), address, 0660) != 0) {
    fail_to_listen(path, std::strerror(errno));
  }
  const bool given = !group || ::chown(path.c_str(), static_cast<uid_t>(-1), *group) == 0;
  if (!given || ::listen(socket_.get(), SOMAXCONN) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    fail_to_listen(path, std::strerror(error));
  }
}

Listener::~Listener() { ::unlink(path_.c_str()); }

Descriptor connect_to(const std::filesystem::path& path) {
  const sockaddr_un address = address_of(path);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) return socket;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return socket;
  }
  const int error = errno;
  socket.close();
  errno = error;
  return socket;
}

}  // namespace dfa::privileges
