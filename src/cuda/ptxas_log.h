#pragma once

#include <string>

namespace dfa::cuda {

// What ptxas said with -v: the most of every function, and spills and stack of all of them.
struct PtxasReport {
  int registers = 0;    // per thread
  int smem_bytes = 0;   // static, per block
  int spill_bytes = 0;  // stores and loads
  int stack_bytes = 0;  // arrays that are indexed at run time, and spills
  // The first line in which ptxas says that it gave up on something: a code C75xx, of setmaxnreg
  // ignored (C7508), wgmma serialized (C7510 to C7518) or waits and arrivals put between its
  // products (C7517, C7519), and whatever else it calls a potential performance loss. Words differ
  // between releases, codes do not.
  std::string warning;
};

// Bytes a thread, stores and loads, up to which a kernel that spills is run with a warning: eight
// registers stored and read once. What spills of one release of the compiler came to in kernels
// that fit by others is 8 to 20 bytes, beside loops or once a tile. Sums that do not fit spill
// hundreds.
inline constexpr int kMostSpilled = 64;

// What to tell whoever runs the kernel of such a report, made by `compiler`; empty: nothing.
std::string spill_warning(const PtxasReport& report, const std::string& compiler);

// Why it must not run, in one line; empty: it may.
std::string refusal(const PtxasReport& report, const std::string& compiler,
                    int most_spilled = kMostSpilled);

PtxasReport read_ptxas_log(const std::string& log);

// Less the lines that differ from one compilation of a kernel to the next.
std::string without_times(const std::string& log);

}  // namespace dfa::cuda
