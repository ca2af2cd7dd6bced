#pragma once

#include "kernels/schedule/sequence_tiles.h"

namespace dfa {

// Of the kernel that deals keys out in splits (split_sequence_tiles.cuh): two counts of each of so
// many sequences and one more, and of warps.
inline constexpr int kSplitSmemBytes = 8 * (kSequenceThreads + 1 + kSequenceThreads / 32);

}  // namespace dfa
