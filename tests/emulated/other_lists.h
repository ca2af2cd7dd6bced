#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "spec/block_lists.h"

namespace dfa::emulated {

// Those of a pass: by queries, or by keys.
struct ListsOfPass {
  std::vector<std::int32_t> BlockArrays::*counts;
  std::vector<std::int32_t> BlockArrays::*indices;
  std::vector<std::int32_t> BlockArrays::*bitmaps;
};

// Lists that are not the problem's, of one entry, one bit or one bitmap, do not pass:
// passes(change) runs with changed lists and judges by the right ones.
inline void expect_other_lists_seen(
    const ListsOfPass& lists,
    const std::function<bool(const std::function<void(BlockArrays&)>&)>& passes) {
  EXPECT_TRUE(passes([](BlockArrays&) {}));
  EXPECT_FALSE(passes([&](BlockArrays& all) { --(all.*lists.counts)[1]; }));
  EXPECT_FALSE(passes([&](BlockArrays& all) { (all.*lists.indices)[0] ^= 1; }));
  EXPECT_FALSE(passes([&](BlockArrays& all) {
    for (std::int32_t& bitmap : all.*lists.bitmaps) bitmap = kFullBlock;
  }));
  EXPECT_FALSE(passes([](BlockArrays& all) { all.bits[5] ^= 0xffffu; }));
}

}  // namespace dfa::emulated
