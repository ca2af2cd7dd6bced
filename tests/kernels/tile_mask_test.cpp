#include "kernels/softmax/tile_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "dfa/mask.h"

namespace dfa {
namespace {

struct Shape {
  int sq, sk;
};

constexpr Shape kShapes[] = {{1, 1}, {1, 40}, {40, 1}, {33, 33}, {20, 37}, {37, 20}};

std::vector<Mask> masks() {
  std::vector<Mask> all;
  for (const long long left : {-1, 0, 3, 50}) {
    for (const long long right : {-1, 0, 5, 50}) all.push_back({left, right});
  }
  return all;
}

template <typename Check>
void for_all(const Check& check) {
  for (const Mask& mask : masks()) {
    for (const Shape& s : kShapes) {
      check(mask, TileMask{static_cast<int>(mask.left), static_cast<int>(mask.right), s.sq, s.sk});
    }
  }
}

bool sees(const TileMask& m, int query, int key) {
  return key >= m.key_begin(query) && key < m.key_end(query);
}

TEST(TileMask, BoundsAreThoseOfTheMask) {
  for_all([](const Mask& mask, const TileMask& m) {
    for (int i = 0; i < m.sq; ++i) {
      EXPECT_EQ(m.key_begin(i), mask.key_begin(i, m.sq, m.sk));
      EXPECT_EQ(m.key_end(i), mask.key_end(i, m.sq, m.sk));
    }
    for (int j = 0; j < m.sk; ++j) {
      EXPECT_EQ(m.query_begin(j), mask.query_begin(j, m.sq, m.sk));
      EXPECT_EQ(m.query_end(j), mask.query_end(j, m.sq, m.sk));
    }
  });
}

HopperRangeMask hopper_chunks(const TileMask& window, int chunk) {
  return {window, {chunk, MultipliedChunks::inverse_of(chunk)}};
}

// Chunks, and prefixes below 0.
template <typename AnyMask>
void expect_bounds(const Mask& mask, const AnyMask& m) {
  for (int i = 0; i < m.sq; ++i) {
    EXPECT_EQ(m.key_begin(i), mask.key_begin(i, m.sq, m.sk));
    EXPECT_EQ(m.key_end(i), mask.key_end(i, m.sq, m.sk));
  }
  for (int j = 0; j < m.sk; ++j) {
    EXPECT_EQ(m.query_begin(j), mask.query_begin(j, m.sq, m.sk));
    EXPECT_EQ(m.query_end(j), mask.query_end(j, m.sq, m.sk));
  }
  for (int query = 0; query < m.sq; query += 4) {
    for (int key = 0; key < m.sk; key += 8) {
      bool hides = false;
      for (int i = query; i < std::min(query + 4, m.sq); ++i) {
        hides |= m.key_begin(i) > key || m.key_end(i) < key + 8;
      }
      EXPECT_EQ(m.needs(query, 4, key, 8), hides);
    }
  }
}

TEST(RangeMask, BoundsAreThoseOfTheMask) {
  for_all([](const Mask& window, const TileMask& m) {
    for (const int chunk : {1, 5, 16, 33, 1000}) {
      const Mask chunks{.left = window.left, .right = window.right, .chunk = chunk};
      expect_bounds(chunks, RangeMask{m, {chunk}});
      expect_bounds(chunks, hopper_chunks(m, chunk));
    }
    expect_bounds(window, RangeMask{m, {0}});
    expect_bounds(window, HopperRangeMask{m, {0, 0}});
    if (window != kCausal) return;
    for (const int prefix : {1, 5, 16, 1000}) {
      expect_bounds({.right = 0, .prefix = prefix}, RangeMask{m, {-prefix}});
      expect_bounds({.right = 0, .prefix = prefix}, HopperRangeMask{m, {-prefix, 0}});
    }
  });
}

TEST(RangeMask, BoundsOfTheLongestSequencesDoNotOverflow) {
  constexpr int kLength = 1 << 28, kLongest = 1 << 29;
  const TileMask causal{-1, 0, kLength, 1};
  EXPECT_EQ((RangeMask{causal, {kLongest}}.key_begin(0)), 0);  // far ahead of the key
  EXPECT_EQ((RangeMask{causal, {kLongest}}.key_end(kLength - 1)), 1);
  EXPECT_EQ(hopper_chunks(causal, kLongest).key_begin(0), 0);
  EXPECT_EQ(hopper_chunks(causal, kLongest).key_end(kLength - 1), 1);
  const RangeMask prefix{{-1, 0, kLength, kLength}, {-kLongest}};
  EXPECT_EQ(prefix.key_end(0), kLength);
  EXPECT_EQ(prefix.query_begin(kLength - 1), 0);
}

// Positions are divided by a product, whose quotient may be 1 too small.
TEST(RangeMask, ChunksOfAnySizeBeginWhereTheyShouldAtAnyPosition) {
  constexpr int kLength = 1 << 28;
  const Random random(3);
  for (std::uint64_t draw = 0; draw < 300000; draw += 3) {
    const int chunk = 1 + static_cast<int>(random.below(draw, 1ull << (1 + draw / 3 % 29)));
    const int query = static_cast<int>(random.below(draw + 1, kLength));
    const int sk = static_cast<int>(random.below(draw + 2, kLength));
    const HopperRangeMask m = hopper_chunks({-1, -1, kLength, sk}, chunk);
    const Mask mask{.chunk = chunk};
    ASSERT_EQ(m.key_begin(query), mask.key_begin(query, kLength, sk)) << query << " " << chunk;
    ASSERT_EQ(m.key_end(query), mask.key_end(query, kLength, sk)) << query << " " << chunk;
  }
}

TEST(TileMask, BoundsOfTheLongestSequencesDoNotOverflow) {
  constexpr int kLength = 1 << 28, kWindow = 1 << 29;
  const TileMask m{kWindow, kWindow, kLength, kLength};
  EXPECT_EQ(m.key_begin(kLength - 1), 0);
  EXPECT_EQ(m.key_end(kLength - 1), kLength);
  EXPECT_EQ(m.query_end(0), kLength);
}

bool holds(const TileRange& range, int first, int count) {
  return first >= range.begin && first + count <= range.end;
}

TEST(TileMask, OnlyATileWithAHiddenPairNeedsMasking) {
  constexpr int kTile = 8;
  for_all([](const Mask&, const TileMask& m) {
    for (int query = 0; query < m.sq; query += kTile) {
      for (int key = 0; key < m.sk; key += kTile) {
        bool hidden = key + kTile > m.sk;
        for (int i = query; i < query + kTile && i < m.sq; ++i) {
          for (int j = key; j < key + kTile && j < m.sk; ++j) hidden |= !sees(m, i, j);
        }
        SCOPED_TRACE(testing::Message() << m.left << " " << m.right << " sq" << m.sq << " sk"
                                        << m.sk << " at " << query << ", " << key);
        EXPECT_EQ(m.needs(query, kTile, key, kTile), hidden);
        EXPECT_EQ(!holds(seeing_all(m, key, kTile), query, kTile), hidden);
        EXPECT_EQ(!holds(seen_by_all(m, query, kTile), key, kTile), hidden);
      }
    }
  });
}

TEST(TileMask, TheTilesWalkedHoldEveryVisiblePairFromBothSides) {
  constexpr int kRows = 16, kTile = 8;
  for_all([](const Mask&, const TileMask& m) {
    for (int i = 0; i < m.sq; ++i) {
      const TileRange tiles = key_tiles(m, i / kRows * kRows, kRows, kTile);
      for (int j = 0; j < m.sk; ++j) {
        if (!sees(m, i, j)) continue;
        EXPECT_TRUE(j / kTile >= tiles.begin && j / kTile < tiles.end);
        const TileRange rows = query_tiles(m, j / kRows * kRows, kRows, kTile);
        EXPECT_TRUE(i / kTile >= rows.begin && i / kTile < rows.end);
      }
    }
  });
}

TEST(TileMask, TilesOutsideACausalTriangleAreNotWalked) {
  const TileMask causal{-1, 0, 64, 64};
  EXPECT_EQ(key_tiles(causal, 16, 16, 8).end, 4);
  EXPECT_EQ(query_tiles(causal, 16, 16, 8).begin, 2);
  const TileMask nothing{-1, 0, 64, 8};  // the first 56 queries see no key
  EXPECT_EQ(key_tiles(nothing, 0, 16, 8).end, 0);
}

// The sum of dq in order counts on it: a tile of queries is visited by those blocks of keys that
// its own range names, and every visit finds a turn.
TEST(TileMask, TilesOfKeysSeenAndTilesOfQueriesThatSeeAgree) {
  for_all([](const Mask&, const TileMask& m) {
    constexpr int kQueries = 8, kKeys = 4;
    for (int query = 0; query < m.sq; query += kQueries) {
      const TileRange keys = key_tiles(m, query, kQueries, kKeys);
      for (int tile = 0; tile * kKeys < m.sk; ++tile) {
        const TileRange queries = query_tiles(m, tile * kKeys, kKeys, kQueries);
        const int at = query / kQueries;
        EXPECT_EQ(tile >= keys.begin && tile < keys.end, at >= queries.begin && at < queries.end)
            << m.left << " " << m.right << " " << m.sq << " " << m.sk << ": " << at << " " << tile;
      }
    }
  });
}

}  // namespace
}  // namespace dfa
