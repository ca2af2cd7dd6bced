#include "cuda/sources.h"

#include "base/env.h"
#include "base/file.h"
#include "dfa/error.h"

namespace dfa::cuda {

namespace fs = std::filesystem;

ReplacedSources::ReplacedSources(std::span<const SourceFile> sources, const fs::path& folder)
    : files_(sources.begin(), sources.end()) {
  for (SourceFile& file : files_) {
    const fs::path path = folder / file.name;
    if (!fs::exists(path)) continue;
    file.text = texts_.emplace_back(read_file(path));
  }
  if (!texts_.empty()) return;
  throw InvalidArgument("DFA_KERNEL_SOURCES: '" + folder.string() +
                        "' holds no file of the kernels; expected a folder with one or more, e.g. "
                        "kernels/forward/sm90_forward.cuh");
}

std::span<const SourceFile> kernel_sources() {
  const std::string folder = env("DFA_KERNEL_SOURCES");
  if (folder.empty()) return embedded_sources();
  static const ReplacedSources replaced(embedded_sources(), folder);
  return replaced.files();
}

}  // namespace dfa::cuda
