#pragma once

#include "spec/target.h"

namespace dfa {

// Of the card that kernels are compiled for ahead, where no device is asked: an H100 or H200.
inline constexpr int kUsualMultiprocessors = 132;

inline constexpr int kBlockSmemBytes = 1024;
inline constexpr int kMultiprocessorRegisters = 65536;

// What the machine offers, as far as a plan needs it.
struct Limits {
  Target highest = Target::cpu_portable;  // every target up to this one is there, of its kind
  long long cache_bytes = 1LL << 20;      // private cache of one core (L2)
  // Of a GPU, when `highest` is one's: shared memory a thread block may ask for, and that of one
  // multiprocessor, of which every block costs kBlockSmemBytes more than it asks for.
  int smem_bytes = 0;
  int multiprocessor_smem_bytes = 0;
  int sm_count = kUsualMultiprocessors;  // that kernels may use: of a card, or of a part of one
};

// Limits of the architectures there are, 10 * major + minor; 80 for one that is not listed.
constexpr Limits gpu_limits(int architecture) {
  constexpr int kKiB = 1024;
  if (architecture < 80) {  // blocks cost nothing beside what they ask for
    return {.highest = Target::cuda_sm75,
            .smem_bytes = 64 * kKiB,
            .multiprocessor_smem_bytes = 64 * kKiB};
  }
  const int multiprocessor = architecture == 86 || architecture == 89   ? 100 * kKiB
                             : architecture >= 90 && architecture < 120 ? 228 * kKiB
                             : architecture >= 120                      ? 100 * kKiB
                                                                        : 164 * kKiB;
  return {.highest = architecture == 90 ? Target::cuda_sm90 : Target::cuda_sm80,
          .smem_bytes = multiprocessor - kBlockSmemBytes,
          .multiprocessor_smem_bytes = multiprocessor};
}

}  // namespace dfa
