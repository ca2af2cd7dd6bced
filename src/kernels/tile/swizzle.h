#pragma once

#include "kernels/device.h"

// Where an element of a tile lies in shared memory. Rows of kColumns 16-bit elements follow each
// other; within a row the 16-byte chunks are permuted by the row, so that the eight rows of an
// 8 x 8 matrix lie in different banks, whatever the column.
namespace dfa {

template <int kColumns>
struct Swizzle {
  static constexpr unsigned kRowBytes = 2 * kColumns;
  static constexpr unsigned kChunks = kColumns / 8;
  // Chunks that permute among each other: the largest power of two, up to the 8 of a 128-byte
  // line of banks, that divides a row.
  static constexpr unsigned kGroup = kChunks % 8 == 0 ? 8 : (kChunks % 4 == 0 ? 4 : 2);
  static constexpr unsigned kRowsPerTurn = 8 / kGroup;
  static_assert(kColumns % 16 == 0);

  static DFA_HOST_DEVICE unsigned turn(unsigned row) { return row / kRowsPerTurn % kGroup; }

  // In bytes from the start of the tile.
  static DFA_HOST_DEVICE unsigned offset(unsigned row, unsigned chunk) {
    return row * kRowBytes + ((chunk ^ turn(row)) << 4);
  }
};

}  // namespace dfa
