#include "kernels/schedule/item_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace dfa {
namespace {

TEST(ItemWalk, EveryTileOfEveryHeadIsTakenOnceByAGridOfAnySize) {
  for (const Items& asked : {Items{12, 5, 12, 0}, Items{12, 5, 4, 1}, Items{7, 3, 2, 1},
                             Items{1, 1, 1, 1}, Items{64, 32, 16, 1}, Items{64, 32, 16, 1, 8},
                             Items{12, 5, 4, 1, 131}, Items{7, 3, 2, 1, 499}}) {
    for (const int blocks : {1, 2, 7, 66, 131, 132, 500}) {
      Items items = asked;
      items.shift %= blocks;
      std::map<std::pair<int, int>, int> taken;
      for (int block = 0; block < blocks; ++block) {
        for (ItemWalk walk(items, block, blocks); walk.more(); walk.next()) {
          ++taken[{walk.head(), walk.tile()}];
        }
      }
      ASSERT_EQ(taken.size(), static_cast<std::size_t>(items.heads * items.tiles)) << blocks;
      for (const auto& [item, times] : taken) {
        ASSERT_EQ(times, 1) << item.first << " " << item.second;
        ASSERT_TRUE(item.first < items.heads && item.second < items.tiles);
      }
    }
  }
}

// Work of a block over that of the busiest, a causal tile i costing i + 1 and a constant.
double balance(const Items& items, int blocks) {
  constexpr double kPerItem = 1.5;
  std::vector<double> work(static_cast<std::size_t>(blocks));
  for (int block = 0; block < blocks; ++block) {
    for (ItemWalk walk(items, block, blocks); walk.more(); walk.next()) {
      work[static_cast<std::size_t>(block)] += walk.tile() + 1 + kPerItem;
    }
  }
  return std::accumulate(work.begin(), work.end(), 0.0) / blocks /
         *std::max_element(work.begin(), work.end());
}

TEST(ItemWalk, CausalWorkIsBalancedBetweenTheBlocks) {
  EXPECT_GT(balance({64, 32, 16, 1}, 132), 0.99);   // 4k
  EXPECT_GT(balance({16, 128, 4, 1}, 132), 0.985);  // 16k
  EXPECT_GT(balance({256, 8, 33, 1}, 132), 0.98);   // 1k
  EXPECT_GT(balance({512, 4, 33, 1}, 132), 0.96);   // 512
  // 2k, whose sections have 3.88 rounds each: not the same 16 blocks wait at the end of all.
  EXPECT_LT(balance({128, 16, 32, 1}, 132), 0.975);
  EXPECT_GT(balance({128, 16, 32, 1, 8}, 132), 0.99);
}

}  // namespace
}  // namespace dfa
