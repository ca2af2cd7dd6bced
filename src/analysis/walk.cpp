#include "analysis/walk.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dfa/error.h"
#include "spec/blocks.h"

namespace dfa::analysis {
namespace {

constexpr std::int64_t kMaxBlocks = 1LL << 24;

// inner_range(first, last): the half-open inner range that outer rows first..last see.
template <typename InnerRange>
Walk walk(std::int64_t outer_size, std::int64_t outer_block, std::int64_t inner_size,
          std::int64_t inner_block, InnerRange&& inner_range) {
  if (outer_block < 1 || inner_block < 1) throw InvalidArgument("analysis: blocks are 1 or more");
  const std::int64_t blocks = (outer_size + outer_block - 1) / outer_block;
  if (blocks > kMaxBlocks) {
    throw InvalidArgument("analysis: length " + std::to_string(outer_size) + " in blocks of " +
                          std::to_string(outer_block) +
                          " is more than 2^24 blocks; accepted: lengths up to 2^27");
  }
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

struct Range {
  std::int64_t begin, end;
};

// A side of the scores: its size, its tiles, its blocks in lists.
struct Side {
  std::int64_t size, tile, block;

  std::int64_t blocks() const { return (size + block - 1) / block; }
  std::int64_t end(std::int64_t first) const { return std::min(first + tile, size); }
};

// Inner tiles of the outer rows [first, end) that lists have a block of, within a range.
// state(outer block, inner block) says what a map has there.
template <typename State>
std::vector<bool> seen_inner(const Side& outer, const Side& inner, std::int64_t first,
                             std::int64_t end, Range range, const State& state) {
  std::vector<bool> seen(static_cast<std::size_t>((inner.size + inner.tile - 1) / inner.tile));
  for (std::int64_t o = first / outer.block; o * outer.block < end; ++o) {
    for (std::int64_t i = 0; i < inner.blocks(); ++i) {
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

template <typename State, typename InnerRange>
Walk walk_blocks(const Side& outer, const Side& inner, const InnerRange& inner_range,
                 const State& state) {
  Walk sum;
  for (std::int64_t first = 0; first < outer.size; first += outer.tile) {
    const std::int64_t end = outer.end(first);
    const auto seen = seen_inner(outer, inner, first, end, inner_range(first, end - 1), state);
    sum.blocks += 1;
    for (std::size_t t = 0; t < seen.size(); ++t) {
      if (!seen[t]) continue;
      const std::int64_t at = static_cast<std::int64_t>(t) * inner.tile;
      const auto rows = static_cast<double>(inner.end(at) - at);
      sum.inner += rows;
      sum.pairs += rows * static_cast<double>(end - first);
    }
  }
  return sum;
}

// The mean over maps.
template <typename OfMap>
Walk mean_of_maps(const Problem& p, const OfMap& of_map) {
  const std::int64_t maps = block_maps(p);
  Walk mean;
  for (std::int64_t map = 0; map < maps; ++map) {
    const Walk one =
        of_map(p.blocks->states.data() + map * p.blocks->rows(p.sq) * p.blocks->columns(p.sk));
    mean.blocks += one.blocks / static_cast<double>(maps);
    mean.inner += one.inner / static_cast<double>(maps);
    mean.pairs += one.pairs / static_cast<double>(maps);
  }
  return mean;
}

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
  const std::int64_t columns = p.blocks->columns(p.sk);
  return mean_of_maps(p, [&](const std::int32_t* states) {
    return walk_blocks(
        {p.sq, block_q, p.blocks->block_q}, {p.sk, block_k, p.blocks->block_k},
        [&](std::int64_t first, std::int64_t last) {
          return Range{p.mask.key_begin(first, p.sq, p.sk), p.mask.key_end(last, p.sq, p.sk)};
        },
        [&](std::int64_t row, std::int64_t column) { return states[row * columns + column]; });
  });
}

Walk walk_keys(const Problem& p, int block_q, int block_k) {
  if (!p.blocks) return walk_keys(p.mask, p.sq, p.sk, block_q, block_k);
  const std::int64_t columns = p.blocks->columns(p.sk);
  return mean_of_maps(p, [&](const std::int32_t* states) {
    return walk_blocks(
        {p.sk, block_k, p.blocks->block_k}, {p.sq, block_q, p.blocks->block_q},
        [&](std::int64_t first, std::int64_t last) {
          return Range{p.mask.query_begin(first, p.sq, p.sk), p.mask.query_end(last, p.sq, p.sk)};
        },
        [&](std::int64_t column, std::int64_t row) { return states[row * columns + column]; });
  });
}

}  // namespace dfa::analysis
