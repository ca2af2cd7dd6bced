#include <map>
#include <set>

#include "base/env.h"
#include "base/python_packages.h"
#include "cuda/cache.h"
#include "cuda/entry_file.h"
#include "cuda/store.h"
#include "dfa/version.h"
#include "gpu/device.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Of the kernels that this library would use, and all else of the others.
struct Found {
  int kernels = 0, usable = 0, unreadable = 0;
  std::set<std::string> archs, compilers;
};

Found look(const fs::path& folder) {
  Found found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "kernels", error)) {
    if (entry.path().extension() != ".kernel") continue;
    ++found.kernels;
    try {
      const CacheFile file = read_description(entry.path());
      if (kernel_store().digest_of(file.request) != file.digest) continue;
      ++found.usable;
      found.archs.insert(file.request.arch);
      found.compilers.insert(file.compiler);
    } catch (const IoError&) {
      ++found.unreadable;
    }
  }
  return found;
}

// A driver that is there and older than every compiler of them.
std::string too_old_a_driver(const Found& found) {
  if (!gpu::available()) return "";
  const int cuda = gpu::driver_version() / 1000;
  for (const std::string& compiler : found.compilers) {
    if (cuda_major(compiler) <= cuda) return "";
  }
  return "a driver of CUDA " + std::to_string(cuda) + " does not run them";
}

std::string why_unused(const Found& found) {
  if (found.unreadable == found.kernels) return "none can be read";
  if (found.usable > 0) return too_old_a_driver(found);
  if (!env("DFA_KERNEL_SOURCES").empty()) return "DFA_KERNEL_SOURCES names other sources";
  return std::string("they are of another version or build than this, dfa ") + kVersion;
}

}  // namespace

fs::path packaged_folder() {
  if (const std::string folder = env("DFA_KERNELS"); !folder.empty()) return folder;
  std::error_code error;
  for (const fs::path& packages : python_packages()) {
    const fs::path folder = packages / "dfa_attention_kernels";
    if (fs::is_directory(folder / "kernels", error)) return folder;
  }
  return {};
}

PackagedInfo packaged_info() {
  PackagedInfo info{.folder = packaged_folder()};
  if (info.folder.empty()) {
    info.text = "none is compiled ahead: pip install dfa-attention-kernels";
    return info;
  }
  const Found found = look(info.folder);
  info.kernels = found.kernels;
  info.usable = found.usable;
  const std::string where = "in '" + info.folder.string() + "'";
  if (found.kernels == 0) {
    info.text = "none is compiled ahead " + where;
    return info;
  }
  if (const std::string why = why_unused(found); !why.empty()) {
    info.text = std::to_string(found.kernels) + " " + where + ", not used: " + why;
    return info;
  }
  info.works = true;
  info.text = std::to_string(found.usable) + " compiled ahead by " + joined(found.compilers) +
              " for " + joined(found.archs) + " " + where;
  if (const int others = found.kernels - found.usable; others > 0) {
    info.text += ", and " + std::to_string(others) + " of another version or build, not used";
  }
  return info;
}

}  // namespace dfa::cuda
