#include "base/python_packages.h"

#include <dlfcn.h>

#include <algorithm>
#include <functional>

#include "base/env.h"

namespace dfa {
namespace {

namespace fs = std::filesystem;

// The library or program that this code is linked into; of a program that was started by a name
// alone, dladdr knows no more than that.
fs::path this_file() {
  std::error_code error;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&python_packages), &info) == 0) return {};
  const fs::path file = fs::canonical(info.dli_fname, error);
  return !error && fs::is_regular_file(file, error) ? file : fs::canonical("/proc/self/exe", error);
}

}  // namespace

fs::path python_packages_around(const fs::path& file) {
  fs::path package = file.parent_path();
  if (package.filename() == "bin") package = package.parent_path();
  std::error_code error;
  const bool is_ours = package.filename() == "dfa" && fs::exists(package / "__init__.py", error);
  return is_ours ? package.parent_path() : fs::path();
}

std::vector<fs::path> python_packages() {
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (!folder.empty() && std::ranges::find(folders, folder) == folders.end()) {
      folders.push_back(folder);
    }
  };
  add(python_packages_around(this_file()));
  const fs::path environment = env("VIRTUAL_ENV");
  if (environment.empty()) return folders;
  std::error_code error;
  std::vector<fs::path> pythons;
  for (const auto& entry : fs::directory_iterator(environment / "lib", error)) {
    if (fs::is_directory(entry.path() / "site-packages", error)) pythons.push_back(entry.path());
  }
  std::sort(pythons.begin(), pythons.end(), std::greater<>());
  for (const fs::path& python : pythons) add(python / "site-packages");
  return folders;
}

}  // namespace dfa
