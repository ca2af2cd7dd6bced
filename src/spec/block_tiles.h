#pragma once

#include <string>
#include <vector>

#include "dfa/problem.h"

// Which tiles of scores a problem with lists of blocks visits.
namespace dfa {

// Tiles of `tile` keys that queries first to end - 1 see, by map `map` of states and by the ends of
// the mask: one flag a tile. Requires states.
std::vector<bool> seen_key_tiles(const Problem& problem, std::int64_t map, std::int64_t first,
                                 std::int64_t end, std::int64_t tile);
// Tiles of `tile` queries that see keys first to end - 1.
std::vector<bool> seen_query_tiles(const Problem& problem, std::int64_t map, std::int64_t first,
                                   std::int64_t end, std::int64_t tile);

// Tiles of `rows` queries by `keys` keys, of all heads: those that are seen, and all.
struct TileCounts {
  double seen = 0, all = 0;
};
TileCounts seen_tiles(const Problem& problem, std::int64_t rows, std::int64_t keys);

// Of a plan's `why`: how many tiles are skipped.
std::string skipped_tiles(const Problem& problem, std::int64_t rows, std::int64_t keys);

// The largest tile side up to `most`, in multiples of `step`, that no two blocks share a tile of;
// `step` where there is none.
std::int64_t side_within(std::int64_t block, std::int64_t most, std::int64_t step);

}  // namespace dfa
