// When keys are cut into splits on the device, and what a problem says of that.
#include <gtest/gtest.h>

#include "plan/select.h"
#include "plan/select_split_kv.h"
#include "plan/validate.h"
#include "random_lines.h"
#include "spec/limits.h"

namespace dfa {
namespace {

const Limits kSplitLimits = gpu_limits(90);

ForwardConfig selected(const std::string& line, const Limits& limits = kSplitLimits) {
  const Problem p = parse_problem("fwd bf16 hq32 hk8 d128 " + line);
  const ForwardConfig config = select_forward(p, limits);
  EXPECT_TRUE(validate_config(config, p, limits)) << line;
  return config;
}

TEST(SplitKvPlan, IsOfFewQueriesAlone) {
  for (const int architecture : {80, 90}) {
    const Limits limits = gpu_limits(architecture);
    for (const char* line : {"lens(1,3,2) lens_k(900,70,2000)", "b64 sq1 sk900 page(16)",
                             "b8 sq4 sk900 packed(32,7200)"}) {
      EXPECT_TRUE(selected(line, limits).split_kv) << line;
    }
    // Prompts: tiles of their own read keys less often.
    for (const char* line : {"causal lens(4096,4096) page(16)", "causal lens(1,4096) page(16)",
                             "causal lens(4096,4096)", "causal b2 sq2048 sk2048"}) {
      EXPECT_FALSE(selected(line, limits).split_kv) << line;
    }
  }
  EXPECT_FALSE(select_forward(parse_problem("fwd fp16 h8 d64 lens(1,1)"), gpu_limits(75)).split_kv);
}

// All rows are the most that one may have, where nobody says more: the mean stands for it.
TEST(SplitKvPlan, GoesByTheMeanWhereTheLongestIsNotKnown) {
  EXPECT_TRUE(selected("b64 sq64 sk90000 packed(64,90000)").split_kv);
  EXPECT_FALSE(selected("b2 sq5000 sk5000 packed(5000,5000)").split_kv);
}

// Of dense keys where they are many: then one kernel serves a cache of any length.
TEST(SplitKvPlan, IsChosenOfDenseKeysThatAreMany) {
  const auto chosen = [](const std::string& sizes) {
    const Problem p = parse_problem("fwd bf16 d128 " + sizes);
    const ForwardConfig c = select_forward(p, kSplitLimits);
    EXPECT_TRUE(validate_config(c, p, kSplitLimits)) << sizes;
    return c;
  };
  const ForwardConfig one = chosen("b1 hq32 hk8 sq1 sk65536");
  EXPECT_TRUE(one.split_kv);
  EXPECT_FALSE(one.varlen);
  EXPECT_EQ(one, chosen("b1 hq32 hk8 sq1 sk120000"));
  for (const char* sizes : {"b8 hq32 hk8 sq1 sk8192", "causal b8 hq32 hk8 sq8 sk8192"}) {
    EXPECT_TRUE(chosen(sizes).split_kv) << sizes;
  }
  for (const char* sizes :
       {"b1 hq32 hk8 sq1 sk8192", "b32 hq32 hk8 sq1 sk1024", "causal b32 hq28 hk4 sq8 sk8192"}) {
    EXPECT_FALSE(chosen(sizes).split_kv) << sizes;
  }
}

TEST(SplitKvPlan, OfOneKindWhateverTheCompany) {
  Dice dice(5);
  const auto random_lens = [&](std::int64_t most) {
    std::string lens = std::to_string(1 + dice.below(most)), lens_k = "5";
    for (std::int64_t n = dice.below(9); n > 0; --n) {
      lens += "," + std::to_string(dice.below(most));
      lens_k += "," + std::to_string(dice.below(3000));
    }
    return "causal lens(" + lens + ") lens_k(" + lens_k + ")";
  };
  const ForwardConfig paged = selected("causal lens(1) lens_k(5) page(16) batch_invariant"),
                      packed = selected("causal lens(1) lens_k(5) batch_invariant");
  EXPECT_GT(paged.split_keys, 0);
  EXPECT_EQ(packed.num_splits, 0);
  for (int n = 0; n < 200; ++n) {
    const std::string line = random_lens(dice.pick({1, 9, 200, 5000}));
    EXPECT_EQ(selected(line + " page(16) batch_invariant"), paged) << line;
    EXPECT_EQ(selected(line + " batch_invariant"), packed) << line;
  }
}

TEST(SplitKvPlan, RulesSayWhatIsNotOfIt) {
  const Problem p = parse_problem("fwd bf16 hq4 hk2 d64 lens(1,1) page(16) batch_invariant");
  ForwardConfig c = select_forward(p, kSplitLimits);
  EXPECT_TRUE(validate_config(c, p, kSplitLimits));
  c.split_keys = 0;
  EXPECT_NE(validate_config(c, p, kSplitLimits).reason.find("batch_invariant"), std::string::npos);
  const Problem chunked = parse_problem("fwd bf16 causal hq4 hk2 d64 lens(1,1) chunk(9)");
  ForwardConfig ranges =
      split_kv_candidates(parse_problem("fwd bf16 hq4 hk2 d64 lens(1,1)"), kSplitLimits)[0];
  ranges.ranges = true;
  EXPECT_NE(validate_config(ranges, chunked, kSplitLimits).reason.find("windows alone"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa
