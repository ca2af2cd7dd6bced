#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dfa/attention.h"
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

// A kernel that is ready to be loaded.
struct WarmKernel {
  std::string name;             // "forward", "delta", "dk dv", "dq"
  std::string name_expression;  // the kernel as C++ text
  std::string origin;           // memory | embedded | disk | compiled
  bool kept = false;            // on disk or in the library
  std::string note;             // why it is not kept, say; mostly empty
  std::string warning;          // a small spill of registers, say; mostly empty
  int registers = 0;            // per thread
  double time_s = 0;            // that it took to have it
};

// Compiles the kernels that a plan for this problem would run by default on a GPU of
// this architecture ("sm_90a"; empty: the device's) and keeps them in cache_folder(). No GPU is
// needed when the architecture is given. Throws Unsupported with the reason where the problem
// cannot run there, or there is no compiler; InvalidArgument for a text that is no architecture.
std::vector<WarmKernel> warm_cache(const Problem& problem, const std::string& arch,
                                   Algorithm algorithm = Algorithm::automatic);

// The run-time compiler: "nvrtc 13.0, /usr/lib/…/libnvrtc.so.13", or why there is none.
struct CompilerInfo {
  bool works = false;
  std::string text;
};
CompilerInfo compiler_info();

}  // namespace dfa::cuda
