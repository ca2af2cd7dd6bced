#include "spec/block_tiles.h"

#include <algorithm>
#include <cmath>

#include "spec/blocks.h"

namespace dfa {
namespace {

struct SeenRows {
  std::int64_t begin, end;
};

// A side of the scores: its size, its tiles, its blocks in lists.
struct TiledSide {
  std::int64_t size, tile, block;
};

// Tiles of `inner` that outer rows [first, end) have a block of within a range. state(outer block,
// inner block) says what a map has there.
template <typename State>
std::vector<bool> seen_inner(std::int64_t first, std::int64_t end, std::int64_t outer_block,
                             const TiledSide& inner, SeenRows range, const State& state) {
  const std::int64_t blocks = (inner.size + inner.block - 1) / inner.block;
  std::vector<bool> seen(static_cast<std::size_t>((inner.size + inner.tile - 1) / inner.tile));
  for (std::int64_t o = first / outer_block; o * outer_block < end; ++o) {
    for (std::int64_t i = 0; i < blocks; ++i) {
      if (state(o, i) == kAbsentBlock) continue;
      const std::int64_t from = std::max(i * inner.block, range.begin);
      const std::int64_t to = std::min((i + 1) * inner.block, range.end);
      for (std::int64_t t = from / inner.tile; from < to && t * inner.tile < to; ++t) {
        seen[static_cast<std::size_t>(t)] = true;
      }
    }
  }
  return seen;
}

const std::int32_t* states_of(const Problem& p, std::int64_t map) {
  return p.blocks->states.data() + map * p.blocks->rows(p.sq) * p.blocks->columns(p.sk);
}

}  // namespace

std::vector<bool> seen_key_tiles(const Problem& p, std::int64_t map, std::int64_t first,
                                 std::int64_t end, std::int64_t tile) {
  const std::int32_t* states = states_of(p, map);
  const std::int64_t columns = p.blocks->columns(p.sk);
  return seen_inner(
      first, end, p.blocks->block_q, {p.sk, tile, p.blocks->block_k},
      {p.mask.key_begin(first, p.sq, p.sk), p.mask.key_end(end - 1, p.sq, p.sk)},
      [&](std::int64_t row, std::int64_t column) { return states[row * columns + column]; });
}

std::vector<bool> seen_query_tiles(const Problem& p, std::int64_t map, std::int64_t first,
                                   std::int64_t end, std::int64_t tile) {
  const std::int32_t* states = states_of(p, map);
  const std::int64_t columns = p.blocks->columns(p.sk);
  return seen_inner(
      first, end, p.blocks->block_k, {p.sq, tile, p.blocks->block_q},
      {p.mask.query_begin(first, p.sq, p.sk), p.mask.query_end(end - 1, p.sq, p.sk)},
      [&](std::int64_t column, std::int64_t row) { return states[row * columns + column]; });
}

TileCounts seen_tiles(const Problem& p, std::int64_t rows, std::int64_t keys) {
  TileCounts counts;
  for (std::int64_t map = 0; map < block_maps(p); ++map) {
    for (std::int64_t first = 0; first < p.sq; first += rows) {
      const auto seen = seen_key_tiles(p, map, first, std::min(first + rows, p.sq), keys);
      counts.seen += static_cast<double>(std::count(seen.begin(), seen.end(), true));
      counts.all += static_cast<double>(seen.size());
    }
  }
  const double heads = static_cast<double>(p.b * p.hq) / static_cast<double>(block_maps(p));
  return {counts.seen * heads, counts.all * heads};
}

std::string skipped_tiles(const Problem& p, std::int64_t rows, std::int64_t keys) {
  if (!p.blocks) return "";
  if (p.blocks->states.empty()) return "; tiles of blocks that are in no list are skipped";
  const TileCounts counts = seen_tiles(p, rows, keys);
  return "; " + std::to_string(std::llround(counts.all - counts.seen)) + " of " +
         std::to_string(std::llround(counts.all)) + " tiles of " + std::to_string(rows) + " by " +
         std::to_string(keys) + " are skipped";
}

std::int64_t side_within(std::int64_t block, std::int64_t most, std::int64_t step) {
  for (std::int64_t side = std::min(block, most) / step * step; side > step; side -= step) {
    if (block % side == 0) return side;
  }
  return step;
}

}  // namespace dfa
