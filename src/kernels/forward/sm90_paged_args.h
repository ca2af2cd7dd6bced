#pragma once

#include "kernels/forward/sm90_args.h"

namespace dfa {

// What sm90_paged_forward is passed. Its maps of k and v are of a whole cache as one packed
// sequence (SeqlenInfo): pages lie whole numbers of rows apart.
struct Sm90PagedForwardArgs : Sm90ForwardArgs {
  int box_rows;           // of a page and of a tile's keys, which it divides
  int k_page, v_page;     // rows from one page to the next
  unsigned page_inverse;  // 2^32 / page, rounded down
  // Boxes of a tile that are left behind whole rounds of its issuers, the row and the number of the
  // first, and whose turn it is first where they are of v.
  int left_boxes, left_row, first_left, v_turn;
};

}  // namespace dfa
