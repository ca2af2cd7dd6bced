#include "spec/flops.h"

#include <gtest/gtest.h>

namespace dfa {
namespace {

// Straight from the mask's definition, one pair at a time.
double enumerated(const Mask& mask, int sq, int sk) {
  int pairs = 0;
  for (int i = 0; i < sq; ++i) {
    for (int j = 0; j < sk; ++j) {
      const int center = i + sk - sq;
      const bool other = mask.chunk > 0 && (center < 0 || center / mask.chunk != j / mask.chunk);
      pairs += j < mask.prefix || ((mask.left < 0 || j >= center - mask.left) &&
                                   (mask.right < 0 || j <= center + mask.right) && !other);
    }
  }
  return pairs;
}

TEST(Flops, VisiblePairsMatchEnumerationForEveryMaskAndSmallShape) {
  for (int left = -1; left <= 12; ++left) {
    for (int right = -1; right <= 12; ++right) {
      for (int sq = 1; sq <= 10; ++sq) {
        for (int sk = 1; sk <= 10; ++sk) {
          const Mask mask{left, right};
          ASSERT_EQ(visible_pairs(mask, sq, sk), enumerated(mask, sq, sk))
              << left << " " << right << " sq" << sq << " sk" << sk;
        }
      }
    }
  }
}

TEST(Flops, PairsOfChunksAndPrefixesMatchEnumeration) {
  for (int sq = 1; sq <= 17; ++sq) {
    for (int sk = 1; sk <= 17; ++sk) {
      for (int size = 1; size <= 19; ++size) {
        for (const Mask& window : {kFull, kCausal, Mask{2, 1}, Mask{3, -1}, Mask{-1, 2}}) {
          const Mask chunked{window.left, window.right, size};
          ASSERT_EQ(visible_pairs(chunked, sq, sk), enumerated(chunked, sq, sk))
              << window.left << " " << window.right << " " << size << " " << sq << " " << sk;
        }
        const Mask prefixed{-1, 0, 0, size};
        ASSERT_EQ(visible_pairs(prefixed, sq, sk), enumerated(prefixed, sq, sk))
            << size << " " << sq << " " << sk;
      }
    }
  }
}

TEST(Flops, MasksOfGreatLengthsAreCountedAtOnce) {
  constexpr std::int64_t kLong = 1LL << 26;
  EXPECT_EQ(visible_pairs(Mask{-1, -1, 1}, kLong, kLong), static_cast<double>(kLong));
  EXPECT_EQ(visible_pairs(Mask{-1, 0, 1LL << 40}, kLong, kLong),
            visible_pairs(kCausal, kLong, kLong));
  EXPECT_EQ(visible_pairs(Mask{-1, 0, 0, 1LL << 40}, 8, kLong), 8.0 * kLong);
}

TEST(Flops, OneQueryAgainstAVeryLongCacheIsExact) {
  constexpr std::int64_t kLong = 1LL << 40;
  EXPECT_EQ(visible_pairs(kCausal, 1, kLong), static_cast<double>(kLong));
  EXPECT_EQ(visible_pairs(Mask{4095, 0}, 1, kLong), 4096.0);
}

TEST(Flops, FullAttentionIsFourProductsOfTheSizesAndTheBackwardTwoAndAHalfTimes) {
  const Problem p = parse_problem("fwdbwd bf16 b2 hq8 hk2 sq1000 sk1024 d128");
  EXPECT_EQ(forward_flops(p), 4.0 * 2 * 8 * 1000 * 1024 * 128);
  EXPECT_EQ(backward_flops(p), 2.5 * forward_flops(p));
}

TEST(Flops, ACausalSquareCountsHalfAndEverythingElseTheVisiblePairs) {
  EXPECT_EQ(counted_pairs(kCausal, 8, 8), 32.0);
  EXPECT_EQ(visible_pairs(kCausal, 8, 8), 36.0);
  EXPECT_EQ(counted_pairs(kCausal, 8, 12), enumerated(kCausal, 8, 12));
  EXPECT_EQ(counted_pairs(Mask{3, 0}, 8, 8), enumerated(Mask{3, 0}, 8, 8));
}

TEST(Flops, ValueDimCountsWhereValuesAreRead) {
  const Problem p = parse_problem("fwdbwd fp32 h1 sq10 sk20 d64 dv16");
  EXPECT_EQ(forward_flops(p), 2.0 * 10 * 20 * (64 + 16));
  EXPECT_EQ(backward_flops(p), 2.0 * 10 * 20 * (3 * 64 + 2 * 16));
}

}  // namespace
}  // namespace dfa
