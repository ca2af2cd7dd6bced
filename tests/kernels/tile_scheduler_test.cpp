#include "kernels/schedule/tile_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace dfa {
namespace {

TEST(PersistentTileScheduler, EveryTileOfEveryHeadIsTakenOnceByAGridOfAnySize) {
  for (const TileGrid& asked :
       {TileGrid{12, 5, 12, 0}, TileGrid{12, 5, 4, 1}, TileGrid{7, 3, 2, 1}, TileGrid{1, 1, 1, 1},
        TileGrid{64, 32, 16, 1}, TileGrid{64, 32, 16, 1, 8}, TileGrid{12, 5, 4, 1, 131},
        TileGrid{7, 3, 2, 1, 499}}) {
    for (const int blocks : {1, 2, 7, 66, 131, 132, 500}) {
      TileGrid tile_grid = asked;
      tile_grid.shift %= blocks;
      std::map<std::pair<int, int>, int> taken;
      for (int block = 0; block < blocks; ++block) {
        for (PersistentTileScheduler walk(tile_grid, block, blocks); walk.more(); walk.next()) {
          ++taken[{walk.head(), walk.tile()}];
        }
      }
      ASSERT_EQ(taken.size(), static_cast<std::size_t>(tile_grid.heads * tile_grid.tiles))
          << blocks;
      for (const auto& [work_tile, times] : taken) {
        ASSERT_EQ(times, 1) << work_tile.first << " " << work_tile.second;
        ASSERT_TRUE(work_tile.first < tile_grid.heads && work_tile.second < tile_grid.tiles);
      }
    }
  }
}

// Work of a block over that of the busiest, a causal tile i costing i + 1 and a constant.
double balance(const TileGrid& tile_grid, int blocks) {
  constexpr double kPerWorkTile = 1.5;
  std::vector<double> work(static_cast<std::size_t>(blocks));
  for (int block = 0; block < blocks; ++block) {
    for (PersistentTileScheduler walk(tile_grid, block, blocks); walk.more(); walk.next()) {
      work[static_cast<std::size_t>(block)] += walk.tile() + 1 + kPerWorkTile;
    }
  }
  return std::accumulate(work.begin(), work.end(), 0.0) / blocks /
         *std::max_element(work.begin(), work.end());
}

TEST(PersistentTileScheduler, CausalWorkIsBalancedBetweenTheBlocks) {
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
