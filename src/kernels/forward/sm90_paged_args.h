#pragma once

#include "kernels/forward/sm90_args.h"

namespace dfa {

// What sm90_paged_forward is passed. Its maps of k and v are of a whole cache as one packed
// sequence (SeqlenInfo): pages lie whole numbers of rows apart.
struct Sm90PagedForwardArgs : Sm90ForwardArgs {
  int box_rows;            // of a page and of a tile's keys, which it divides
  int boxes, third_begin;  // of a tile; those from there on are of a third warp
  int k_page, v_page;      // rows from one page to the next
  unsigned page_inverse;   // 2^32 / page, rounded down
};

}  // namespace dfa
