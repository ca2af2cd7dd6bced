#pragma once

namespace dfa {

// Of the kernel that lists tiles of packed sequences (sequence_tiles.cuh), and its shared memory.
inline constexpr int kSequenceThreads = 256;
inline constexpr int kLengthClasses = 64;
inline constexpr int kSequenceSmemBytes = 4 * kLengthClasses;

// Two thread blocks make the lists, the others clear what is of no sequence.
inline constexpr int kListBlocks = 2;

}  // namespace dfa
