#include "analysis/walk.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dfa/error.h"
#include "spec/block_tiles.h"
#include "spec/blocks.h"

namespace dfa::analysis {
namespace {

constexpr std::int64_t kMaxBlocks = 1LL << 24;

// How many outer blocks there are.
std::int64_t require_tiles(std::int64_t outer_size, std::int64_t outer_block,
                           std::int64_t inner_block) {
  if (outer_block < 1 || inner_block < 1) throw InvalidArgument("analysis: blocks are 1 or more");
  const std::int64_t blocks = (outer_size + outer_block - 1) / outer_block;
  if (blocks > kMaxBlocks) {
    throw InvalidArgument("analysis: length " + std::to_string(outer_size) + " in blocks of " +
                          std::to_string(outer_block) +
                          " is more than 2^24 blocks; accepted: lengths up to 2^27");
  }
  return blocks;
}

// inner_range(first, last): the half-open inner range that outer rows first..last see.
template <typename InnerRange>
Walk walk(std::int64_t outer_size, std::int64_t outer_block, std::int64_t inner_size,
          std::int64_t inner_block, InnerRange&& inner_range) {
  const std::int64_t blocks = require_tiles(outer_size, outer_block, inner_block);
  Walk sum{.blocks = static_cast<double>(blocks)};
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = block * outer_block;
    const std::int64_t end = std::min(first + outer_block, outer_size);
    const auto [begin_row, end_row] = inner_range(first, end - 1);
    if (end_row <= begin_row) continue;
    const std::int64_t from = begin_row / inner_block * inner_block;
    const std::int64_t to =
        std::min((end_row + inner_block - 1) / inner_block * inner_block, inner_size);
    sum.inner += static_cast<double>(to - from);
    sum.pairs += static_cast<double>(to - from) * static_cast<double>(end - first);
  }
  return sum;
}

// The mean over maps of states. seen(map, first, end): the inner tiles that outer rows first to
// end - 1 see.
template <typename Seen>
Walk walk_blocks(const Problem& p, std::int64_t outer_size, std::int64_t outer_tile,
                 std::int64_t inner_size, std::int64_t inner_tile, const Seen& seen) {
  require_tiles(outer_size, outer_tile, inner_tile);
  Walk sum;
  const std::int64_t maps = block_maps(p);
  for (std::int64_t map = 0; map < maps; ++map) {
    for (std::int64_t first = 0; first < outer_size; first += outer_tile) {
      const std::int64_t end = std::min(first + outer_tile, outer_size);
      const std::vector<bool> tiles = seen(map, first, end);
      sum.blocks += 1;
      for (std::size_t t = 0; t < tiles.size(); ++t) {
        if (!tiles[t]) continue;
        const std::int64_t at = static_cast<std::int64_t>(t) * inner_tile;
        const auto rows = static_cast<double>(std::min(inner_tile, inner_size - at));
        sum.inner += rows;
        sum.pairs += rows * static_cast<double>(end - first);
      }
    }
  }
  const auto heads = static_cast<double>(maps);
  return {sum.blocks / heads, sum.inner / heads, sum.pairs / heads};
}

struct Range {
  std::int64_t begin, end;
};

}  // namespace

Walk walk_queries(const Mask& mask, std::int64_t sq, std::int64_t sk, int block_q, int block_k) {
  return walk(sq, block_q, sk, block_k, [&](std::int64_t first, std::int64_t last) {
    return Range{mask.key_begin(first, sq, sk), mask.key_end(last, sq, sk)};
  });
}

Walk walk_keys(const Mask& mask, std::int64_t sq, std::int64_t sk, int block_q, int block_k) {
  return walk(sk, block_k, sq, block_q, [&](std::int64_t first, std::int64_t last) {
    return Range{mask.query_begin(first, sq, sk), mask.query_end(last, sq, sk)};
  });
}

Walk walk_queries(const Problem& p, int block_q, int block_k) {
  if (!p.blocks) return walk_queries(p.mask, p.sq, p.sk, block_q, block_k);
  return walk_blocks(p, p.sq, block_q, p.sk, block_k,
                     [&](std::int64_t map, std::int64_t first, std::int64_t end) {
                       return seen_key_tiles(p, map, first, end, block_k);
                     });
}

Walk walk_keys(const Problem& p, int block_q, int block_k) {
  if (!p.blocks) return walk_keys(p.mask, p.sq, p.sk, block_q, block_k);
  return walk_blocks(p, p.sk, block_k, p.sq, block_q,
                     [&](std::int64_t map, std::int64_t first, std::int64_t end) {
                       return seen_query_tiles(p, map, first, end, block_q);
                     });
}

}  // namespace dfa::analysis
