#include "kernels/schedule/repair_walk.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace dfa {
namespace {

using Item = std::pair<int, int>;

// What the notes of a block hold; `asks` says which items want to be done again.
struct Board {
  std::set<int> asked;
  ItemWalk::Place begin{};
  ItemWalk::Place parked{};
  unsigned parked_state = 0;
  int met = 0;
};

struct Notes {
  Board* board;

  void meet(int time) const { EXPECT_EQ(time, board->met++); }
  bool asked(int item) const { return board->asked.count(item) != 0; }
  bool any() const { return !board->asked.empty(); }
  void start(const ItemWalk& walk) const {
    board->asked.clear();
    board->begin = walk.place();
  }
  void go_back(ItemWalk& walk) const { walk.go(board->begin); }
  void park(const ItemWalk& walk, unsigned state) const {
    board->parked = walk.place();
    board->parked_state = state;
  }
  unsigned unpark(ItemWalk& walk) const {
    walk.go(board->parked);
    return board->parked_state;
  }
};

struct Done {
  std::vector<Item> once, again;
};

template <bool kRepairs>
Done work(const Items& items, int block, int blocks, const std::function<bool(Item)>& asks) {
  Board board;
  Done done;
  for (RepairWalk<Notes, kRepairs> walk(ItemWalk(items, block, blocks), {&board}); walk.more();
       walk.next()) {
    const Item item{walk.head(), walk.tile()};
    walk.park();
    (walk.again() ? done.again : done.once).push_back(item);
    EXPECT_LT(walk.place(), kItemsAtOnce);
    if (!walk.again() && asks(item)) board.asked.insert(walk.place());
    walk.unpark();
  }
  return done;
}

// 7700 items: one block meets eight times.
const Items kMany{.heads = 700, .tiles = 11, .section = 40, .late_first = 1};
const Items kShifted{.heads = 700, .tiles = 11, .section = 40, .late_first = 1, .shift = 4};

TEST(RepairWalk, WithoutRepairsItIsThePlainWalk) {
  const auto plain = work<false>(kMany, 1, 3, [](Item) { return true; });
  const auto calm = work<true>(kMany, 1, 3, [](Item) { return false; });
  std::vector<Item> walked;
  for (ItemWalk walk(kMany, 1, 3); walk.more(); walk.next())
    walked.emplace_back(walk.head(), walk.tile());
  EXPECT_EQ(plain.once, walked);
  EXPECT_EQ(calm.once, walked);
  EXPECT_TRUE(plain.again.empty() && calm.again.empty());
}

TEST(RepairWalk, WhatAsksIsDoneAgainOnceAndNothingElseByAGridOfAnySize) {
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

TEST(RepairWalk, ABlockWithoutItemsEndsAtOnce) {
  const Done done = work<true>({1, 1, 1, 1}, 3, 4, [](Item) { return true; });
  EXPECT_TRUE(done.once.empty() && done.again.empty());
}

}  // namespace
}  // namespace dfa
