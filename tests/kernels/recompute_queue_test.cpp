#include "kernels/schedule/recompute_queue.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/recompute_board.h"

namespace dfa {
namespace {

using WorkTile = std::pair<int, int>;

struct Done {
  std::vector<WorkTile> once, again;
};

template <bool kRecomputes>
Done work(const TileGrid& tile_grid, int block, int blocks,
          const std::function<bool(WorkTile)>& asks) {
  RecomputeBoard<PersistentTileScheduler> board;
  Done done;
  for (RecomputeQueue<BoardNotes<PersistentTileScheduler>, kRecomputes> walk(
           PersistentTileScheduler(tile_grid, block, blocks), {&board});
       walk.more(); walk.next()) {
    const WorkTile work_tile{walk.head(), walk.tile()};
    walk.park();
    (walk.again() ? done.again : done.once).push_back(work_tile);
    EXPECT_LT(walk.place(), PersistentTileScheduler::kAtOnce);
    if (!walk.again() && asks(work_tile)) board.asked.insert(walk.place());
    walk.unpark();
  }
  return done;
}

// 7700 work tiles: one block meets eight times.
const TileGrid kMany{.heads = 700, .tiles = 11, .section = 40, .late_first = 1};
const TileGrid kShifted{.heads = 700, .tiles = 11, .section = 40, .late_first = 1, .shift = 4};

TEST(RecomputeQueue, WithoutRepairsItIsThePlainWalk) {
  const auto plain = work<false>(kMany, 1, 3, [](WorkTile) { return true; });
  const auto calm = work<true>(kMany, 1, 3, [](WorkTile) { return false; });
  std::vector<WorkTile> walked;
  for (PersistentTileScheduler walk(kMany, 1, 3); walk.more(); walk.next())
    walked.emplace_back(walk.head(), walk.tile());
  EXPECT_EQ(plain.once, walked);
  EXPECT_EQ(calm.once, walked);
  EXPECT_TRUE(plain.again.empty() && calm.again.empty());
}

TEST(RecomputeQueue, WhatAsksIsDoneAgainOnceAndNothingElseByAGridOfAnySize) {
  struct Grid {
    const TileGrid& tile_grid;
    int blocks;
  };
  const std::function<bool(WorkTile)> kinds[] = {
      [](WorkTile) { return true; }, [](WorkTile work_tile) { return work_tile.first % 7 == 3; },
      [](WorkTile work_tile) {
        return work_tile == WorkTile{0, 10};
      },
      [](WorkTile work_tile) {
        return work_tile == WorkTile{699, 0};
      }};
  for (const auto& asks : kinds) {
    for (const auto& [tile_grid, blocks] :
         {Grid{kMany, 1}, {kMany, 5}, {kMany, 7}, {kMany, 132}, {kShifted, 5}, {kShifted, 132}}) {
      std::multiset<WorkTile> once, again;
      for (int block = 0; block < blocks; ++block) {
        const Done done = work<true>(tile_grid, block, blocks, asks);
        once.insert(done.once.begin(), done.once.end());
        again.insert(done.again.begin(), done.again.end());
      }
      ASSERT_EQ(once.size(), 7700u);
      std::multiset<WorkTile> wanted;
      for (const WorkTile& work_tile : once) {
        if (asks(work_tile)) wanted.insert(work_tile);
      }
      EXPECT_EQ(again, wanted) << blocks;
    }
  }
}

TEST(RecomputeQueue, ABlockWithoutItemsEndsAtOnce) {
  const Done done = work<true>({1, 1, 1, 1}, 3, 4, [](WorkTile) { return true; });
  EXPECT_TRUE(done.once.empty() && done.again.empty());
}

}  // namespace
}  // namespace dfa
