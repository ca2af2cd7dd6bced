#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "dfa/error.h"

namespace dfa {
namespace {

[[noreturn]] void fail_to_read(const std::filesystem::path& path, const std::string& why) {
  throw IoError("cannot read '" + path.string() + "': " + why);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::uint64_t most) {
  std::error_code ignored;  // opening says what is wrong
  if (std::filesystem::is_directory(path, ignored)) fail_to_read(path, std::strerror(EISDIR));
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail_to_read(path, std::strerror(errno));
  std::string bytes;
  char block[1 << 16];
  while (stream.read(block, sizeof block), stream.gcount() > 0) {
    bytes.append(block, static_cast<std::size_t>(stream.gcount()));
    if (bytes.size() > most) {
      fail_to_read(
          path, "it has more than " + std::to_string(most) + " bytes, the most that is accepted");
    }
  }
  if (stream.bad()) fail_to_read(path, std::strerror(EIO));
  return bytes;
}

}  // namespace dfa
