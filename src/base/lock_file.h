#pragma once

#include <filesystem>
#include <string>

namespace dfa {

// Keeps a second process from the same work in the same place. The lock is the kernel's (flock), so
// it ends with the process, however that ends; the file tells who holds it and goes with the
// object of this class.
class LockFile {
 public:
  // `place` is what is locked, for messages. Throws IoError where another process holds it, naming
  // that process, and where the lock file cannot be made.
  LockFile(std::filesystem::path path, const std::string& place);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace dfa
