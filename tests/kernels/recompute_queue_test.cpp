#include "kernels/schedule/recompute_queue.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/recompute_board.h"

namespace dfa {
namespace {

using Item = std::pair<int, int>;

struct Done {
  std::vector<Item> once, again;
};

template <bool kRecomputes>
Done work(const Items& items, int block, int blocks, const std::function<bool(Item)>& asks) {
  RecomputeBoard<ItemWalk> board;
  Done done;
  for (RecomputeQueue<BoardNotes<ItemWalk>, kRecomputes> walk(ItemWalk(items, block, blocks),
                                                              {&board});
       walk.more(); walk.next()) {
    const Item item{walk.head(), walk.tile()};
    walk.park();
    (walk.again() ? done.again : done.once).push_back(item);
    EXPECT_LT(walk.place(), ItemWalk::kAtOnce);
    if (!walk.again() && asks(item)) board.asked.insert(walk.place());
    walk.unpark();
  }
  return done;
}

// 7700 items: one block meets eight times.
const Items kMany{.heads = 700, .tiles = 11, .section = 40, .late_first = 1};
const Items kShifted{.heads = 700, .tiles = 11, .section = 40, .late_first = 1, .shift = 4};

TEST(RecomputeQueue, WithoutRepairsItIsThePlainWalk) {
  const auto plain = work<false>(kMany, 1, 3, [](Item) { return true; });
  const auto calm = work<true>(kMany, 1, 3, [](Item) { return false; });
  std::vector<Item> walked;
  for (ItemWalk walk(kMany, 1, 3); walk.more(); walk.next())
    walked.emplace_back(walk.head(), walk.tile());
  EXPECT_EQ(plain.once, walked);
  EXPECT_EQ(calm.once, walked);
  EXPECT_TRUE(plain.again.empty() && calm.again.empty());
}

TEST(RecomputeQueue, WhatAsksIsDoneAgainOnceAndNothingElseByAGridOfAnySize) {
  struct Grid {
    const Items& items;
    int blocks;
  };
  const std::function<bool(Item)> kinds[] = {[](Item) { return true; },
                                             [](Item item) { return item.first % 7 == 3; },
                                             [](Item item) {
                                               return item == Item{0, 10};
                                             },
                                             [](Item item) {
                                               return item == Item{699, 0};
                                             }};
  for (const auto& asks : kinds) {
    for (const auto& [items, blocks] :
         {Grid{kMany, 1}, {kMany, 5}, {kMany, 7}, {kMany, 132}, {kShifted, 5}, {kShifted, 132}}) {
      std::multiset<Item> once, again;
      for (int block = 0; block < blocks; ++block) {
        const Done done = work<true>(items, block, blocks, asks);
        once.insert(done.once.begin(), done.once.end());
        again.insert(done.again.begin(), done.again.end());
      }
      ASSERT_EQ(once.size(), 7700u);
      std::multiset<Item> wanted;
      for (const Item& item : once) {
        if (asks(item)) wanted.insert(item);
      }
      EXPECT_EQ(again, wanted) << blocks;
    }
  }
}

TEST(RecomputeQueue, ABlockWithoutItemsEndsAtOnce) {
  const Done done = work<true>({1, 1, 1, 1}, 3, 4, [](Item) { return true; });
  EXPECT_TRUE(done.once.empty() && done.again.empty());
}

}  // namespace
}  // namespace dfa
