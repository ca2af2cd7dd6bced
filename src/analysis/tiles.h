#pragma once

#include <cstdint>
#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"

// Which tiles fit a fast memory. The size of a tile is ForwardConfig::tile_bytes() and its backward
// twin: everything counted into one memory, also what a GPU kernel would keep in registers.
namespace dfa::analysis {

struct Tile {
  int block_q = 0;
  int block_k = 0;
  std::int64_t tile_bytes = 0;
  double memory_bytes = 0;  // FlashAttention forward with this tile, nothing kept in a cache
};

// For every block_q of the grid, the largest block_k of the grid that fits. Empty when none does.
std::vector<Tile> fitting_tiles(const Problem& problem, std::int64_t sram_bytes);

// The fitting tile with the longest shorter side, since that is how often an operand in the fast
// memory is used; of those the one with the least traffic, then the smallest. Throws
// InvalidArgument when none fits, naming the least size that would.
ForwardConfig best_forward(const Problem& problem, std::int64_t sram_bytes);
BackwardConfig best_backward(const Problem& problem, std::int64_t sram_bytes);

// The rule of the first FlashAttention paper: Bc = ceil(M / 4d), Br = min(Bc, d), M in elements.
struct PaperTile {
  std::int64_t block_q = 0;  // Br
  std::int64_t block_k = 0;  // Bc
};
PaperTile paper_tile(const Problem& problem, std::int64_t sram_bytes);

}  // namespace dfa::analysis
