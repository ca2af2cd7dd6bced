#pragma once

#include "kernels/forward/sm90_paged_args.h"
#include "kernels/forward/split_kv_args.h"

namespace dfa {

// What sm90_sliced_split_forward is passed, and the kernel that combines what it leaves. Of
// `partials` the rows and places of parts are told; what is of pages where keys lie in pages.
struct Sm90SplitForwardArgs : Sm90PagedForwardArgs {
  SplitKvArgs splits;

  // Of a work of a head (SplitPiece::work): a word that says where its first piece is, 0 where
  // there is nothing to combine. A block's first piece is a copy at `first`.
  DFA_HOST_DEVICE unsigned word_of_first(int block) const { return 1 + block; }
  DFA_HOST_DEVICE unsigned word_of_next(int piece) const { return 1 + splits.blocks + piece; }
  DFA_HOST_DEVICE const SplitPiece& piece_of(unsigned word) const {
    const int n = static_cast<int>(word) - 1;
    return n < splits.blocks ? splits.first[n] : splits.pieces[n - splits.blocks];
  }
};

}  // namespace dfa
