// Shares of the last work tiles: each place of each work tile in one piece, the same number of
// places a split.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/schedule/split_kv.h"
#include "kernels/schedule/tile_scheduler.h"

namespace dfa {
namespace {

TEST(SplitKv, EveryPlaceIsInOnePieceAndSharesAreEqual) {
  for (const int num_splits : {1, 2, 5, 66, 132}) {
    for (int work_tiles = 1; work_tiles <= 3 * num_splits + 1; ++work_tiles) {
      const SplitKv all{work_tiles, num_splits};
      ASSERT_EQ(all.whole() % num_splits, 0);
      ASSERT_GE(all.left(), 1);
      ASSERT_LE(all.left(), num_splits);
      std::vector<int> places(static_cast<std::size_t>(work_tiles));
      for (int n = 0; n < all.whole(); ++n) {
        const KeyPiece piece = all.nth(n);
        ASSERT_EQ(piece.work_tile, n);
        places.at(static_cast<std::size_t>(n)) += piece.to - piece.from;
      }
      for (int split = 0; split < num_splits; ++split) {
        const KeyPiece first = all.nth(all.whole() + split);
        const KeyPiece second = all.nth(all.count() - 1 - split);
        ASSERT_EQ(first.to - first.from + second.to - second.from, all.left());
        places.at(static_cast<std::size_t>(first.work_tile)) += first.to - first.from;
        if (second.to > 0) places.at(static_cast<std::size_t>(second.work_tile)) += second.to;
      }
      for (const int of_work_tile : places) ASSERT_EQ(of_work_tile, num_splits);
    }
  }
}

// From one end of a work tile to the other, without a gap.
TEST(SplitKv, PiecesOfAnItemFollowEachOther) {
  for (const int work_tiles : {1, 8, 50, 66, 67, 131, 512, 1024}) {
    const SplitKv all{work_tiles, 66};
    for (int work_tile = all.whole(); work_tile < work_tiles; ++work_tile) {
      int at = 0;
      for (int split = all.first_split(work_tile); split <= all.last_split(work_tile); ++split) {
        const KeyPiece piece = all.piece(all.piece_of(split, work_tile));
        ASSERT_EQ(piece.work_tile, work_tile);
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
  for (int split = all.first_split(4); split <= all.last_split(4); ++split) {
    const TileRange piece = all.tiles_of(all.piece(all.piece_of(split, 4)), tiles);
    ASSERT_EQ(piece.begin, at);
    at = piece.end;
  }
  EXPECT_EQ(at, tiles.end);
}

// The walk turns with every round, behind an even and an odd number of whole ones.
TEST(SplitKv, ABlockOfAGridOfThatSizeHasBothPiecesOfAShare) {
  for (const int work_tiles : {3, 11, 19}) {
    const SplitKv all{work_tiles, 8};
    const TileGrid row{.heads = 1, .tiles = all.count(), .section = 1, .late_first = 0};
    for (int block = 0; block < 8; ++block) {
      int places = 0, pieces = 0;
      for (PersistentTileScheduler walk(row, block, 8); walk.more(); walk.next()) {
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
