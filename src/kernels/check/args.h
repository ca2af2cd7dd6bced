#pragma once

#include "kernels/args.h"
#include "kernels/device.h"

namespace dfa {

// What check_rows is passed.
struct RowsArgs {
  KernelArgs args;  // o is read
  float* errors;    // of each row that is checked, a thread block each
  unsigned long long seed;
  long long rows;  // b * hq * sq
};

inline constexpr int kCheckThreads = 512;
inline constexpr int kCheckWarps = kCheckThreads / 32;

// The row that a block checks: another one for every seed.
DFA_HOST_DEVICE long long drawn_row(unsigned long long seed, unsigned block, long long rows) {
  unsigned long long x = seed * 0x9e3779b97f4a7c15ull + block + 1;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return static_cast<long long>((x ^ x >> 31) % static_cast<unsigned long long>(rows));
}

// Floats that a warp leaves for the merge: maximum, sum, and its part of the row.
DFA_HOST_DEVICE constexpr int check_part(int held) { return 2 + 32 * held; }

}  // namespace dfa
