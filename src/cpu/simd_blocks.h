#pragma once

#include <cstdint>

#include "cpu/engine.h"

// What lists of blocks leave of the scores of a tile, which may straddle blocks.
namespace dfa::cpu {

template <class Isa>
class SimdBlocks {
 public:
  explicit SimdBlocks(const HeadBlocks& blocks) : blocks_(blocks) {}

  // Is no block there of the queries [row, row_end) and the keys [key, key_end)?
  bool skip(std::int64_t row, std::int64_t row_end, std::int64_t key, std::int64_t key_end) const {
    return blocks_.states != nullptr && all(row, row_end, key, key_end, [](std::int32_t state) {
             return state == kAbsentBlock;
           });
  }

  // Is a part of them hidden?
  bool hide(std::int64_t row, std::int64_t row_end, std::int64_t key, std::int64_t key_end) const {
    return blocks_.states != nullptr &&
           !all(row, row_end, key, key_end, [](std::int32_t state) { return state == kFullBlock; });
  }

  // Scores of the query `row` and the keys from `key` on become `hidden` where it does not see
  // them.
  void hide_row(float* scores, int count, std::int64_t row, std::int64_t key, float hidden) const {
    const std::int32_t* states = blocks_.states + row / blocks_.block_q * blocks_.columns;
    for (int i = 0; i < count;) {
      const std::int64_t column = (key + i) / blocks_.block_k;
      if (column >= blocks_.columns) return;  // behind the last key, which the mask hides
      const std::int64_t first = column * blocks_.block_k - key;
      const std::int64_t left = first + blocks_.block_k;
      const int end = left < count ? static_cast<int>(left) : count;
      const std::int32_t state = states[column];
      if (state == kAbsentBlock) {
        for (; i < end; ++i) scores[i] = hidden;
      } else if (state != kFullBlock) {
        const std::uint32_t* bits =
            blocks_.bits + (state * blocks_.block_q + row % blocks_.block_q) * blocks_.row_words;
        for (; i < end; ++i) {
          const std::int64_t j = i - first;
          if ((bits[j / 32] >> (j % 32) & 1U) == 0) scores[i] = hidden;
        }
      }
      i = end;
    }
  }

 private:
  template <typename Is>
  bool all(std::int64_t row, std::int64_t row_end, std::int64_t key, std::int64_t key_end,
           const Is& is) const {
    for (std::int64_t i = row / blocks_.block_q; i * blocks_.block_q < row_end; ++i) {
      for (std::int64_t j = key / blocks_.block_k; j * blocks_.block_k < key_end; ++j) {
        if (!is(blocks_.states[i * blocks_.columns + j])) return false;
      }
    }
    return true;
  }

  const HeadBlocks& blocks_;
};

}  // namespace dfa::cpu
