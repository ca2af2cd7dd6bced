#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace dfa::testing {

// A folder of the test's own, readable by everyone, that goes away with this object, so also where
// the test fails.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dfa-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder " + pattern);
    path_ = pattern;
    std::filesystem::permissions(path_, std::filesystem::perms{0755});
  }
  ~TempDir() {
    if (::getpid() != maker_) return;  // a child of fork() ends before its parent is done
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms{0755}, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

  // Folders on the way are made.
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file;
  }

 private:
  const int maker_ = ::getpid();
  std::filesystem::path path_;
};

}  // namespace dfa::testing
