// Shares of the last items: each place of each item in one piece, the same number of places a
// share.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/schedule/item_walk.h"
#include "kernels/schedule/split_kv.h"

namespace dfa {
namespace {

TEST(SplitKv, EveryPlaceIsInOnePieceAndSharesAreEqual) {
  for (const int shares : {1, 2, 5, 66, 132}) {
    for (int items = 1; items <= 3 * shares + 1; ++items) {
      const SplitKv all{items, shares};
      ASSERT_EQ(all.whole() % shares, 0);
      ASSERT_GE(all.left(), 1);
      ASSERT_LE(all.left(), shares);
      std::vector<int> places(static_cast<std::size_t>(items));
      for (int n = 0; n < all.whole(); ++n) {
        const KeyPiece piece = all.nth(n);
        ASSERT_EQ(piece.item, n);
        places.at(static_cast<std::size_t>(n)) += piece.to - piece.from;
      }
      for (int share = 0; share < shares; ++share) {
        const KeyPiece first = all.nth(all.whole() + share);
        const KeyPiece second = all.nth(all.count() - 1 - share);
        ASSERT_EQ(first.to - first.from + second.to - second.from, all.left());
        places.at(static_cast<std::size_t>(first.item)) += first.to - first.from;
        if (second.to > 0) places.at(static_cast<std::size_t>(second.item)) += second.to;
      }
      for (const int of_item : places) ASSERT_EQ(of_item, shares);
    }
  }
}

// From one end of an item to the other, without a gap.
TEST(SplitKv, PiecesOfAnItemFollowEachOther) {
  for (const int items : {1, 8, 50, 66, 67, 131, 512, 1024}) {
    const SplitKv all{items, 66};
    for (int item = all.whole(); item < items; ++item) {
      int at = 0;
      for (int share = all.first_share(item); share <= all.last_share(item); ++share) {
        const KeyPiece piece = all.piece(all.piece_of(share, item));
        ASSERT_EQ(piece.item, item);
        ASSERT_EQ(piece.from, at);
        ASSERT_GT(piece.to, at);
        at = piece.to;
      }
      ASSERT_EQ(at, 66);
    }
  }
}

TEST(SplitKv, TilesOfPiecesAreThoseOfTheItem) {
  const SplitKv all{10, 66};
  const TileRange tiles{3, 40};
  int at = tiles.begin;
  for (int share = all.first_share(4); share <= all.last_share(4); ++share) {
    const TileRange piece = all.tiles_of(all.piece(all.piece_of(share, 4)), tiles);
    ASSERT_EQ(piece.begin, at);
    at = piece.end;
  }
  EXPECT_EQ(at, tiles.end);
}

// The walk turns with every round, behind an even and an odd number of whole ones.
TEST(SplitKv, ABlockOfAGridOfThatSizeHasBothPiecesOfAShare) {
  for (const int items : {3, 11, 19}) {
    const SplitKv all{items, 8};
    const Items row{.heads = 1, .tiles = all.count(), .section = 1, .late_first = 0};
    for (int block = 0; block < 8; ++block) {
      int places = 0, pieces = 0;
      for (ItemWalk walk(row, block, 8); walk.more(); walk.next()) {
        if (walk.tile() < all.whole()) continue;
        const KeyPiece piece = all.nth(walk.tile());
        places += piece.to - piece.from;
        ++pieces;
      }
      EXPECT_EQ(places, all.left());
      EXPECT_EQ(pieces, 2);
    }
  }
}

}  // namespace
}  // namespace dfa
