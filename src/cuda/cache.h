#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
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

// Kernels compiled ahead, in a package of their own that is only read: DFA_KERNELS, else
// dfa_attention_kernels among the Python packages of this library or environment; empty where there
// is none.
std::filesystem::path packaged_folder();

// What is there of them: "651 kernels by nvrtc 13.0 for sm_80, sm_90a in '/usr/…'", or why they are
// not used.
struct PackagedInfo {
  bool works = false;  // some are used
  std::string text{};
  std::filesystem::path folder{};
  int kernels = 0;
  int usable = 0;  // of this version and these sources
};
PackagedInfo packaged_info();

// A kernel that a plan would run.
struct WantedKernel {
  std::string name;             // "forward", "delta", "dk dv", "dq"
  std::string source;           // its file among the kernels' sources
  std::string name_expression;  // the kernel as C++ text
  std::string arch;             // "sm_90a"
  int cuda = 0;                 // version of CUDA of the driver that is to run it; 0: not known
  std::string preamble{};       // C++ text ahead of the file
};

// What plans of these problems would run by default, each kernel once. refused: the lines of
// problems that cannot run there, and why.
struct WantedKernels {
  std::vector<WantedKernel> kernels;
  std::vector<std::pair<std::string, std::string>> refused;
};

// The card that plans are for. arch empty: the device here. sm_count 0: all multiprocessors of the
// device, or of an H100 where an architecture is named.
struct WarmCard {
  std::string arch{};
  int sm_count = 0;
};

// Compiles nothing, and needs no GPU when the architecture is given. Throws InvalidArgument for a
// text that is no architecture.
WantedKernels wanted_kernels(std::span<const Problem> problems, const WarmCard& card,
                             Algorithm algorithm = Algorithm::automatic);

// A kernel that is ready to be loaded, or why it cannot be had.
struct WarmKernel {
  WantedKernel wanted;
  std::string origin{};        // memory | embedded | packaged | disk | compiled; empty: not had
  std::string digest{};        // the name that it is kept under
  bool kept = false;           // on disk, in a package or in the library
  std::string note{};          // why it is not kept, say; mostly empty
  std::string warning{};       // a small spill of registers, say; mostly empty
  int registers = 0;           // per thread
  double time_s = 0;           // that it took to have it
  std::exception_ptr error{};  // Unsupported where there is no compiler, or CompileError
};

// Compiles what is not there yet and keeps it in cache_folder(), so many at once. told: after each,
// one at a time. Throws what it throws.
void warm_kernels(const std::vector<WantedKernel>& kernels, int at_once,
                  const std::function<void(const WarmKernel&)>& told);

// The run-time compiler: "nvrtc 13.0, /usr/lib/…/libnvrtc.so.13", or why there is none.
struct CompilerInfo {
  bool works = false;
  std::string text;
};
CompilerInfo compiler_info();

}  // namespace dfa::cuda
