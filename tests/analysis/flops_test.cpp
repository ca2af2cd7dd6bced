#include "analysis/flops.h"

#include <gtest/gtest.h>

#include "analysis/walk.h"
#include "dfa/error.h"
#include "spec/flops.h"

namespace dfa::analysis {
namespace {

bool visible(const Mask& mask, int i, int j, int sq, int sk) {
  return j >= mask.key_begin(i, sq, sk) && j < mask.key_end(i, sq, sk);
}

// Visits tiles one element at a time: a tile counts when one pair in it is visible.
double enumerated_tile_pairs(const Mask& mask, int sq, int sk, int bq, int bk) {
  int pairs = 0;
  for (int q = 0; q < sq; q += bq) {
    for (int k = 0; k < sk; k += bk) {
      const int q_end = std::min(q + bq, sq), k_end = std::min(k + bk, sk);
      bool any = false;
      for (int i = q; i < q_end; ++i) {
        for (int j = k; j < k_end; ++j) any = any || visible(mask, i, j, sq, sk);
      }
      if (any) pairs += (q_end - q) * (k_end - k);
    }
  }
  return pairs;
}

TEST(Walk, VisitsExactlyTheTilesThatHoldAVisiblePair) {
  for (const Mask mask : {kFull, kCausal, Mask{2, 3}, Mask{0, 0}, Mask{5, -1}, Mask{-1, 4}}) {
    for (const auto& [sq, sk] : {std::pair{13, 13}, {7, 19}, {19, 7}, {1, 16}}) {
      for (const int bq : {1, 4, 5, 16}) {
        for (const int bk : {1, 3, 8}) {
          const double expected = enumerated_tile_pairs(mask, sq, sk, bq, bk);
          EXPECT_EQ(tile_pairs(mask, sq, sk, bq, bk), expected) << sq << " " << sk;
          EXPECT_EQ(walk_keys(mask, sq, sk, bq, bk).pairs, expected) << sq << " " << sk;
        }
      }
    }
  }
}

TEST(Walk, TilesOfOneElementAreTheVisiblePairsAndLargerTilesOnlyAdd) {
  EXPECT_EQ(tile_pairs(kCausal, 50, 70, 1, 1), visible_pairs(kCausal, 50, 70));
  double before = 0;
  for (const int block : {1, 2, 4, 8, 16, 32, 64}) {
    const double pairs = tile_pairs(kCausal, 64, 64, block, block);
    EXPECT_GT(pairs, before);
    before = pairs;
  }
  EXPECT_EQ(before, 64.0 * 64.0);
}

// A tile of blocks in lists counts when one of them is there and the mask's ends reach it.
TEST(Walk, SkipsTilesWhoseBlocksAreInNoList) {
  for (const char* mask : {"", "causal ", "window(20,10) "}) {
    const Problem p = parse_problem(std::string("fwd fp32 ") + mask +
                                    "b1 h2 sq90 sk130 d16 blocks(random,0.3,4,32x16,h)");
    for (const auto& [bq, bk] : {std::pair{8, 8}, {32, 16}, {16, 64}, {64, 32}}) {
      double pairs = 0;
      for (std::size_t map = 0; map < 2; ++map) {
        const auto shown = [&](std::int64_t i, std::int64_t j) {
          return p.blocks->states[map * 27 + static_cast<std::size_t>(i / 32 * 9 + j / 16)] !=
                 kAbsentBlock;
        };
        for (std::int64_t q = 0; q < 90; q += bq) {
          const std::int64_t q_end = std::min<std::int64_t>(q + bq, 90);
          for (std::int64_t k = 0; k < 130; k += bk) {
            const std::int64_t k_end = std::min<std::int64_t>(k + bk, 130);
            bool any = false;
            for (std::int64_t i = q; i < q_end; ++i) {
              for (std::int64_t j = k; j < k_end; ++j) {
                // Of the mask its first and last rows decide, as tiles go by ends.
                any = any || (shown(i, j) && j >= p.mask.key_begin(q, 90, 130) &&
                              j < p.mask.key_end(q_end - 1, 90, 130));
              }
            }
            if (any) pairs += static_cast<double>((q_end - q) * (k_end - k)) / 2;
          }
        }
      }
      EXPECT_EQ(tile_pairs(p, bq, bk), pairs) << mask << bq << " " << bk;
    }
  }
}

TEST(Walk, RefusesEndlessWalksAndEmptyBlocks) {
  EXPECT_THROW(walk_queries(kFull, 1LL << 40, 8, 16, 16), InvalidArgument);
  EXPECT_THROW(walk_queries(kFull, 8, 8, 0, 16), InvalidArgument);
}

TEST(Products, SumToTheConventionWhenEveryPairIsVisible) {
  const Problem p = parse_problem("fwdbwd bf16 b2 hq8 hk2 sq100 sk200 d64 dv32");
  const double pairs = 100.0 * 200.0;
  EXPECT_EQ(total_flops(forward_products(p, pairs)), forward_flops(p));
  EXPECT_EQ(total_flops(flash_backward_products(p, pairs)), backward_flops(p));
}

TEST(Products, TheRecomputationIsOneProductOfFive) {
  const Problem p = parse_problem("bwd bf16 h1 s128 d64");
  const double standard = total_flops(standard_backward_products(p, 1.0));
  const auto flash = flash_backward_products(p, 1.0);
  EXPECT_EQ(flash.size(), 5u);
  EXPECT_EQ(total_flops(flash), 1.25 * standard);
  EXPECT_EQ(standard, 2.0 * total_flops(forward_products(p, 1.0)));
}

// d_model = 2 heads of 8: 16. One token: 16 x 64 and 64 x 16 multiply-adds.
TEST(Layers, AnMlpOfOneTokenIsTwoMatrixVectorProducts) {
  const LayerFlops mlp = mlp_flops(parse_problem("fwd fp32 h2 s1 d8"));
  EXPECT_EQ(mlp.forward, 2.0 * (16 * 64 + 64 * 16));
  EXPECT_EQ(mlp.backward, 2.0 * mlp.forward);
}

TEST(Layers, ProjectionsShrinkWithTheKeyHeads) {
  // d_model 16, 3 tokens: q and o are 16 x 16, k and v 16 x 8.
  const LayerFlops layer = projection_flops(parse_problem("fwd fp32 hq2 hk1 s3 d8"));
  EXPECT_EQ(layer.forward, 2.0 * 3 * (2 * 16 * 16 + 2 * 16 * 8));
}

TEST(Layers, AttentionEqualsTheMlpWhereTheSearchFindsItToo) {
  for (const char* line : {"fwd bf16 h16 s1 d64", "fwd bf16 causal h16 s1 d64"}) {
    Problem p = parse_problem(line);
    const double length = *length_where_attention_equals_mlp(p);
    p.sq = p.sk = static_cast<std::int64_t>(length);
    EXPECT_DOUBLE_EQ(forward_flops(p), mlp_flops(p).forward) << line;
  }
  EXPECT_EQ(*length_where_attention_equals_mlp(parse_problem("fwd bf16 h16 s1 d64")), 4096.0);
  EXPECT_FALSE(length_where_attention_equals_mlp(parse_problem("fwd bf16 h1 s9 d8 window(4,0)")));
}

}  // namespace
}  // namespace dfa::analysis
