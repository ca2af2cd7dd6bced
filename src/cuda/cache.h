#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dfa/error.h"

// The folder of compiled kernels, for people. In a build without CUDA, src/cuda_absent defines
// these: they throw Unsupported.
namespace dfa::cuda {

// DFA_CACHE_DIR, else $XDG_CACHE_HOME/dfa, else $HOME/.cache/dfa; empty when none of them is set.
std::filesystem::path cache_folder();

struct CacheEntry {
  std::string digest;
  std::string name_expression;
  std::string arch;
  std::string compiler;
  std::uint64_t bytes = 0;
  Verdict intact;
};

// Sorted by name expression and architecture; empty when the folder is not there.
std::vector<CacheEntry> list_cache(const std::filesystem::path& folder);

// Removes every entry, and nothing else that may lie in the folder. Number of entries removed.
// Throws IoError when one cannot be removed.
int clear_cache(const std::filesystem::path& folder);

}  // namespace dfa::cuda
