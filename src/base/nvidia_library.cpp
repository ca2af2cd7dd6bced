#include "base/nvidia_library.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/env.h"

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
  const fs::path environment = env("VIRTUAL_ENV");
  if (environment.empty()) return names;
  for (const fs::path& python : paths_in(environment / "lib")) {
    for (const fs::path& package : paths_in(python / "site-packages" / "nvidia")) {
      if (fs::is_directory(package / "lib", error)) add(package / "lib");
    }
  }
  return names;
}

}  // namespace dfa
