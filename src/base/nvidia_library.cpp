#include "base/nvidia_library.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>

#include "base/env.h"
#include "base/python_packages.h"

namespace dfa {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), std::greater<>());  // cu13 before cuda_nvrtc
  return found;
}

}  // namespace

std::vector<std::string> nvidia_library_names(const char* forced,
                                              std::initializer_list<const char*> files) {
  std::vector<std::string> names;
  const auto add = [&](const fs::path& folder) {
    for (const char* file : files) names.push_back((folder / file).string());
  };
  const fs::path given = env(forced);
  std::error_code error;
  if (fs::is_directory(given, error)) add(given);
  if (!given.empty() && names.empty()) names.push_back(given.string());
  if (!names.empty()) return names;
  add("");
  add(fs::path(env("CUDA_HOME")) / "lib64");
  for (const fs::path& packages : python_packages()) {
    for (const fs::path& package : paths_in(packages / "nvidia")) {
      if (fs::is_directory(package / "lib", error)) add(package / "lib");
    }
  }
  return names;
}

std::vector<SharedLibrary> open_beside(const std::string& library, const std::string& prefix) {
  std::vector<SharedLibrary> opened;
  if (!fs::path(library).has_parent_path()) return opened;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(library).parent_path(), error)) {
    if (entry.path().filename().string().rfind(prefix, 0) != 0) continue;
    const std::string name = entry.path().string();
    opened.push_back(SharedLibrary::open_first(std::span(&name, 1)));
  }
  return opened;
}

}  // namespace dfa
