#include "analysis/walk.h"

#include <algorithm>
#include <string>

#include "dfa/error.h"

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

}  // namespace dfa::analysis
