#pragma once

#include <algorithm>

#include "emulated/hopper.h"
#include "kernels/forward/split_kv_args.h"

namespace dfa::emulated {

// The most splits that a tile of queries has, in the lists of so many blocks; all have places.
inline int most_splits(const SplitKvArgs& splits, int blocks) {
  int most = 0;
  for (int block = 0; block < blocks; ++block) {
    const SplitPiece* piece = splits.first + block;
    for (;; piece = splits.pieces + piece->next) {
      most = std::max(most, piece->tile.splits);
      EXPECT_LT(piece->part(piece->tile.splits - 1), splits.most_parts);
      if (piece->is_last) break;
    }
  }
  return most;
}

}  // namespace dfa::emulated
