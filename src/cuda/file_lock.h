#pragma once

#include <filesystem>

namespace dfa::cuda {

// Keeps other processes from compiling the same kernel at the same time. Only work is saved by it,
// correctness does not depend on it: where the lock cannot be had (read-only folder, holder hung
// for a minute) the object holds nothing. The file goes with the object.
class FileLock {
 public:
  explicit FileLock(std::filesystem::path path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return fd_ >= 0; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace dfa::cuda
