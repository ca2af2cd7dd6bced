#pragma once

#include "kernels/args.h"

namespace dfa {

// Where a row of a sequence is among its pages: the column of the table that has its page, and the
// row of that page. `inverse` is 2^32 / page, rounded down, by which a column is right, or 1 too
// small.
struct PagePlace {
  unsigned column, begin;
};

DFA_HOST_DEVICE PagePlace page_place(unsigned row, unsigned page, unsigned inverse) {
  unsigned column = static_cast<unsigned>(static_cast<unsigned long long>(row) * inverse >> 32);
  if (row - column * page >= page) ++column;
  return {column, row - column * page};
}

}  // namespace dfa
