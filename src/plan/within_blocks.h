#pragma once

#include "dfa/problem.h"

namespace dfa {

// A tile of queries by keys that divides the blocks of a problem's lists: warps become fewer with
// its rows, as long as there are two.
template <typename Tile>
Tile within_blocks(const Problem& p, Tile tile) {
  if (!p.blocks) return tile;
  while (p.blocks->block_q % tile.block_q != 0) {
    if (tile.warps > 1) tile.warps /= 2;
    tile.block_q /= 2;
  }
  while (p.blocks->block_k % tile.block_k != 0) tile.block_k /= 2;
  return tile;
}

}  // namespace dfa
