
#include <gtest/gtest.h>

#include <string>

#include "kernels/launch.h"
#include "plan/schedule.h"

namespace dfa {
namespace {

constexpr int kPairs = 66;

using Dq = DqAccumulation;

BackwardConfig pairs(Dq dq) {
  return {.target = Target::cuda_sm90,
          .element = DType::bf16,
          .head_dim = 128,
          .value_dim = 128,
          .block_q = 64,
          .block_k = 128,
          .dq = dq,
          .cluster = 2,
          .persistent = dq == Dq::atomic_fused};
}

struct Ends {
  int alternate;  // of the last heads
  double before, after;
};

Ends ends(const std::string& line, const BackwardConfig& config) {
  const Problem p = parse_problem(line);
  const int heads = static_cast<int>(p.b * p.hk), at_once = select_head_swizzle(p, config),
            from = select_tail_heads(p, config);
  EXPECT_EQ(from % at_once, 0) << line;
  const auto costs = backward_tile_costs(p, config);
  return {heads - from,
          backward_tile_balance(costs, heads, at_once, heads / at_once * at_once, kPairs),
          backward_tile_balance(costs, heads, at_once, from, kPairs)};
}

TEST(BackwardTileBalance, AWorkCostsTheStepsThatSeeItsKeys) {
  const BackwardConfig config = pairs(Dq::atomic_fused);
  const auto full = backward_tile_costs(parse_problem("bwd bf16 h1 s600 d64"), config);
  ASSERT_EQ(full.size(), 3u);
  EXPECT_EQ(full[0], full[2]);
  const auto causal = backward_tile_costs(parse_problem("bwd bf16 causal h1 s600 d64"), config);
  EXPECT_EQ(causal[0], full[0]);
  EXPECT_EQ(causal[0] - causal[1], 4);  // 256 queries fewer
  const auto groups =
      backward_tile_costs(parse_problem("bwd bf16 causal hq3 hk1 s600 d64"), config);
  EXPECT_EQ(groups[0] - groups[1], 12);
  const auto unseen =
      backward_tile_costs(parse_problem("bwd bf16 causal h1 sq10 sk600 d64"), config);
  EXPECT_GT(unseen[0], 1);  // of keys before all queries, as of others
}

TEST(BackwardTileBalance, IsOneWhereAllEndTogether) {
  EXPECT_DOUBLE_EQ(backward_tile_balance({3, 3}, 33, 33, 33, kPairs), 1);
  EXPECT_DOUBLE_EQ(backward_tile_balance({3, 3}, 33, 1, 0, kPairs), 1);
  EXPECT_DOUBLE_EQ(backward_tile_balance({3, 1}, 1, 1, 1, 2), 2.0 / 3);
  // A head's long work beside another's short one, and in two groups behind both.
  EXPECT_DOUBLE_EQ(backward_tile_balance({2, 1}, 3, 1, 3, 2), 4.5 / 5);
  EXPECT_DOUBLE_EQ(backward_tile_balance({2, 1}, 3, 3, 0, 2), 4.5 / 5);
  EXPECT_DOUBLE_EQ(backward_tile_balance({2, 1, 1}, 2, 1, 2, 2), 1);
}

// 21 heads of 16 work tiles, four at once: the last one's 16 leave 50 pairs idle. 84 are 21 groups.
TEST(BackwardTileBalance, LastHeadsOfFewWorksAlternateWithOthers) {
  const BackwardConfig config = pairs(Dq::atomic_fused);
  const Ends one = ends("bwd bf16 causal b1 h21 s4096 d96", config);
  EXPECT_EQ(one.alternate, 9);
  EXPECT_LT(one.before, 0.88);
  EXPECT_GT(one.after, 0.97);
  const Ends many = ends("bwd bf16 causal b4 h21 s4096 d96", config);
  EXPECT_GT(many.alternate, 4);
  EXPECT_LT(many.before, 0.975);
  EXPECT_GT(many.after, 0.99);
  EXPECT_GT(ends("bwd bf16 causal b2 h21 s8192 d96", config).after, 0.99);
  EXPECT_GT(ends("bwd bf16 causal b16 hq32 hk8 s1024 d128", pairs(Dq::serialized_fused)).alternate,
            8);
}

// One head after the other but at the end, where dq is rounded by a kernel of its own.
TEST(BackwardTileBalance, LastHeadsAlternateWhereOthersDoNot) {
  const BackwardConfig config = pairs(Dq::atomic);
  const Ends few = ends("bwd bf16 causal b1 h11 s16384 d96", config);
  EXPECT_EQ(few.alternate, 2);
  EXPECT_LT(few.before, 0.92);
  EXPECT_GT(few.after, 0.99);
  EXPECT_EQ(ends("bwd bf16 causal b1 h32 s16384 d64", config).alternate, 0);
}

TEST(BackwardTileBalance, WhereThatIsWorthNothingHeadsAlternateAsOthers) {
  for (const char* line :
       {"bwd bf16 causal b4 h16 s4096 d128", "bwd bf16 causal b1 h16 s16384 d128",
        "bwd bf16 b4 h16 s4096 d128 window(500,0)", "bwd bf16 causal b128 h64 s512 d64"}) {
    EXPECT_EQ(ends(line, pairs(Dq::atomic_fused)).alternate, 0) << line;
  }
  // Without a mask work tiles are of one length.
  EXPECT_EQ(ends("bwd bf16 b1 h21 s4096 d96", pairs(Dq::atomic_fused)).alternate, 1);
  EXPECT_EQ(ends("bwd bf16 b1 h3 s1024 d64", pairs(Dq::serialized_fused)).alternate, 3);
}

TEST(BackwardTileBalance, IsNeverWorseThanBefore) {
  for (const Dq dq : {Dq::serialized_fused, Dq::atomic_fused}) {
    for (const int heads : {1, 3, 12, 21, 25, 70}) {
      for (const char* length : {"s1", "s512", "s2000", "sq300 sk4096", "s16384"}) {
        const std::string line = "bwd bf16 causal h" + std::to_string(heads) + " " + length;
        const Ends of = ends(line + " d128", pairs(dq));
        EXPECT_GE(of.after, of.before) << line;
        EXPECT_LE(of.alternate, heads) << line;
      }
    }
  }
}

}  // namespace
}  // namespace dfa
