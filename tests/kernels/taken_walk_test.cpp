#include "kernels/schedule/taken_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kernels/repair_board.h"
#include "kernels/schedule/repair_walk.h"

namespace dfa {
namespace {

using Item = std::pair<int, int>;

// What a block took; of older ones nothing is known any more.
struct Taken {
  int* counter;
  const Items* items;
  std::map<int, Items::Item> noted;
};

struct TestQueue {
  Taken* memory;

  static constexpr bool kNotes = true;

  Items::Item take() const { return memory->items->nth((*memory->counter)++); }
  void note(int at, Items::Item item) const {
    memory->noted[at] = item;
    memory->noted.erase(at - TakenWalk<TestQueue>::kAtOnce - 1);
  }
  Items::Item noted(int at) const { return memory->noted.at(at); }
};
using Walk = TakenWalk<TestQueue>;

const Items kFull{.heads = 12, .tiles = 5, .section = 12, .late_first = 0};
const Items kCausal{.heads = 7, .tiles = 6, .section = 3, .late_first = 1};

// Blocks that take their next item in an order of their own: all items once, in the order of the
// sections, the late tiles of each first.
TEST(TakenWalk, EveryItemIsTakenOnceByWhicheverBlockComes) {
  for (const Items& items : {kFull, kCausal, Items{1, 1, 1, 1}}) {
    for (const unsigned pace : {1u, 2u, 5u}) {
      int counter = 0;
      constexpr std::size_t kTakers = 4;
      std::vector<Taken> memories(kTakers, {&counter, &items, {}});
      std::vector<Walk> walks;
      walks.reserve(kTakers);
      for (Taken& memory : memories) walks.emplace_back(TestQueue{&memory});
      std::set<Item> taken;
      std::vector<bool> over(kTakers);
      for (unsigned turn = 0; std::count(over.begin(), over.end(), false) > 0; ++turn) {
        const std::size_t block = turn % pace == 0 ? 0 : turn / pace % kTakers;
        const std::size_t next = over[block] ? turn % kTakers : block;
        if (over[next]) continue;
        Walk& walk = walks[next];
        if (!walk.more()) {
          over[next] = true;
          continue;
        }
        EXPECT_TRUE(taken.insert({walk.head(), walk.tile()}).second);
        walk.next();
      }
      EXPECT_EQ(taken.size(), static_cast<std::size_t>(items.heads * items.tiles));
      EXPECT_EQ(counter, items.heads * items.tiles + static_cast<int>(kTakers));
    }
  }
}

TEST(TakenWalk, OneBlockHasTheOrderOfTheItemsDealtOutToOne) {
  int counter = 0;
  Taken memory{&counter, &kFull, {}};
  ItemWalk dealt(kFull, 0, 1);
  Walk taken(TestQueue{&memory});
  for (; dealt.more(); dealt.next(), taken.next()) {
    ASSERT_TRUE(taken.more());
    EXPECT_EQ(Item(taken.head(), taken.tile()), Item(dealt.head(), dealt.tile()));
  }
  EXPECT_FALSE(taken.more());
}

TEST(TakenWalk, SectionsFollowEachOtherLateTilesFirst) {
  int counter = 0;
  Taken memory{&counter, &kCausal, {}};
  std::vector<Item> order;
  for (Walk walk(TestQueue{&memory}); walk.more(); walk.next()) {
    order.emplace_back(walk.head(), walk.tile());
  }
  std::vector<Item> wanted;
  for (int first = 0; first < 7; first += 3) {
    for (int tile = 5; tile >= 0; --tile) {
      for (int head = first; head < std::min(first + 3, 7); ++head) wanted.emplace_back(head, tile);
    }
  }
  EXPECT_EQ(order, wanted);
}

// Of a block that takes them all, and of one whose next items others take meanwhile.
TEST(TakenWalk, WhatAsksIsDoneAgainOnceAndNothingElse) {
  const Items many{.heads = 50, .tiles = 11, .section = 8, .late_first = 1};
  for (const int others : {0, 1, 3}) {  // that take an item for each of this block
    for (const int kind : {1, 7, 31, 32, 33, 100}) {
      int counter = 0;
      Taken memory{&counter, &many, {}};
      RepairBoard<Walk> board;
      std::vector<Item> once, asking, again;
      for (RepairWalk<BoardNotes<Walk>, true, Walk> walk(Walk(TestQueue{&memory}), {&board});
           walk.more(); walk.next()) {
        const Item item{walk.head(), walk.tile()};
        walk.park();
        if (walk.again()) {
          again.push_back(item);
        } else {
          counter += others;
          once.push_back(item);
          ASSERT_LT(walk.place(), Walk::kAtOnce);
          if (once.size() % static_cast<std::size_t>(kind) == 0) {
            board.asked.insert(walk.place());
            asking.push_back(item);
          }
        }
        walk.unpark();
      }
      EXPECT_EQ(again, asking) << others << " " << kind;
      EXPECT_EQ(std::set<Item>(once.begin(), once.end()).size(), once.size());
      EXPECT_EQ(once.size(), static_cast<std::size_t>((550 + others) / (1 + others)));
      EXPECT_EQ(board.met, static_cast<int>((once.size() + Walk::kAtOnce) / Walk::kAtOnce));
    }
  }
}

}  // namespace
}  // namespace dfa
