#pragma once

#include <vector>

#include "kernels/launch.h"

namespace dfa {

// Steps along the keys that each query tile of a head takes, and what a work tile costs beside
// them.
std::vector<double> forward_tile_costs(const Problem& problem, const ForwardConfig& config);

// Work of a block, on average, over that of the busiest of `blocks`, which walk `tile_grid`; 1
// where nobody waits for others at the end.
double balance(const TileGrid& tile_grid, const std::vector<double>& costs, int blocks);

// forward_tile_grid(), shifted from section to section as keeps a grid of `blocks` busiest, or in
// sections of fewer or more heads where that is better still by 1 %, of short heads 2 %: of heads
// that are no multiple of a section the last ones leave most blocks idle. Takes up to some
// milliseconds.
TileGrid balanced_tile_grid(const Problem& problem, const ForwardConfig& config, int blocks);

}  // namespace dfa
