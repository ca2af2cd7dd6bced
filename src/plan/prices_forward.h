#pragma once

#include <vector>

#include "dfa/problem.h"

// Which tiles Hopper's forward is worth trying with, and what they are predicted to take (0015,
// "Tiles by joules").
namespace dfa {

// What a ForwardConfig says beyond element type and head dims.
struct Sm90Tile {
  int block_q, block_k, stages, q_stages;
  bool pingpong;
  int cluster = 1;
  int q_columns_in_regs = 0;
  int num_splits = 0;

  friend bool operator==(const Sm90Tile&, const Sm90Tile&) = default;
};

// With the time that a call is predicted to take while the card stands at its power limit of 700 W,
// in us: its joules over 700 W.
struct PricedTile {
  double us;
  Sm90Tile tile;
};

// The tiles whose joules were measured for a problem's element type and head dim, the least first
// (larger items with up to 3 % on top), also with the last items in shares of their keys where that
// promises more than 5 %, or 2.5 % behind whole rounds; none of other types and dims. Whether a
// tile is legal of the problem is not asked. sm_count: multiprocessors to share the work; prices
// are of all of a card's together, and hold for a part of it as its share of them.
std::vector<PricedTile> priced_sm90_tiles(const Problem& problem, int sm_count);

}  // namespace dfa
