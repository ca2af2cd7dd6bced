#pragma once

#include <cstdint>
#include <vector>

#include "dfa/attention.h"

// Which rows and keys see each other, as the reference has it.
namespace dfa {

// Rows or keys [begin, end), less those that are hidden in between; begin == end where there is
// none.
struct Seen {
  std::int64_t begin = 0, end = 0;
  std::vector<bool> hidden{};  // empty: none

  bool shows(std::int64_t n) const {
    return hidden.empty() || !hidden[static_cast<std::size_t>(n)];
  }
};

// All of `count` that `visible` names.
template <typename Visible>
Seen seen_of(std::int64_t count, const Visible& visible) {
  Seen seen;
  std::vector<bool> shown(static_cast<std::size_t>(count));
  for (std::int64_t n = 0; n < count; ++n) {
    if (!visible(n)) continue;
    if (seen.end == 0) seen.begin = n;
    seen.end = n + 1;
    shown[static_cast<std::size_t>(n)] = true;
  }
  for (std::int64_t n = seen.begin; n < seen.end; ++n) {
    if (shown[static_cast<std::size_t>(n)]) continue;
    seen.hidden.resize(static_cast<std::size_t>(seen.end - seen.begin));
    seen.hidden[static_cast<std::size_t>(n - seen.begin)] = true;
  }
  return seen;
}

// Problem::blocks of one query head, as the definition says it: a query sees a key where the list
// of its block has the key's, and the bitmap the pair. No engine shares this.
class SeenBlocks {
 public:
  SeenBlocks(const Problem& p, const BlockLists& lists, std::int64_t b, std::int64_t hq)
      : lists_(lists) {
    if (!p.blocks) return;
    block_q_ = p.blocks->block_q;
    block_k_ = p.blocks->block_k;
    rows_ = (p.sq + block_q_ - 1) / block_q_;
    columns_ = (p.sk + block_k_ - 1) / block_k_;
    const std::int64_t heads = p.blocks->of_head ? p.hq : 1;
    map_ = (p.blocks->of_batch ? b * heads : 0) + (p.blocks->of_head ? hq : 0);
  }

  // Is there a block in the list of this query's? True without lists.
  bool lists_keys_of(std::int64_t i) const {
    return block_q_ == 0 || lists_.kv_counts[map_ * rows_ + i / block_q_] > 0;
  }

  bool sees(std::int64_t i, std::int64_t j) const {
    if (block_q_ == 0) return true;
    const std::int64_t list = map_ * rows_ + i / block_q_;
    for (std::int64_t at = list * columns_; at < list * columns_ + lists_.kv_counts[list]; ++at) {
      if (lists_.kv_indices[at] != j / block_k_) continue;
      if (lists_.kv_bitmaps == nullptr || lists_.kv_bitmaps[at] < 0) return true;
      const std::int64_t words = (block_k_ + 31) / 32, column = j % block_k_;
      const std::int64_t row = lists_.kv_bitmaps[at] * block_q_ + i % block_q_;
      return (lists_.bits[row * words + column / 32] >> (column % 32) & 1U) != 0;
    }
    return false;
  }

 private:
  BlockLists lists_;
  std::int64_t block_q_ = 0, block_k_ = 0, rows_ = 0, columns_ = 0, map_ = 0;
};

}  // namespace dfa
