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

// A cache in e4m3 takes the same kernel, whose tiles have twice the keys where a key has half the
// bytes; prompts, too, as no other kernel has it.
TEST(SplitKvPlan, CachesInE4m3AreOfItAlone) {
  for (const int architecture : {80, 86, 89, 90, 120}) {
    const Limits limits = gpu_limits(architecture);
    for (const char* line : {"lens(1,3,2) lens_k(900,70,2000) page(16)", "b64 sq1 sk900 page(16)",
                             "causal lens(1,4096) page(16)", "causal lens(4096,4096) page(16)",
                             "causal lens(1,9) page(16) softcap(9) alibi sink",
                             "lens(1) page(16) batch_invariant", "lens(9) page(1) num_splits(3)"}) {
      const ForwardConfig c = selected(line + std::string(" kv(e4m3)"), limits);
      EXPECT_TRUE(c.split_kv && c.kv_e4m3) << line;
      EXPECT_EQ(c.element, DType::bf16);
      EXPECT_FALSE(selected(line, limits).kv_e4m3) << line;
    }
  }
  // Heads so wide that there are no registers for 32 rows.
  for (const char* wide : {"d256 lens(4,4)", "d192 dv256 causal lens(900)"}) {
    const Problem p = parse_problem(std::string("fwd bf16 hq32 hk8 page(16) kv(e4m3) ") + wide);
    const ForwardConfig c = select_forward(p, kSplitLimits);
    EXPECT_TRUE(validate_config(c, p, kSplitLimits)) << wide;
    EXPECT_EQ(c.block_q, 16) << wide;
  }
  const std::string line = "lens(1) lens_k(9000) page(16)";
  EXPECT_EQ(selected(line).block_k, 64);
  EXPECT_EQ(selected(line + " kv(e4m3)").block_k, 128);
  EXPECT_EQ(selected(line + " kv(e4m3)").smem_bytes() - selected(line).smem_bytes(),
            2 * 64 * kKeyPlaceBytes + 4 * (16 + 4));  // places of the keys, factors of the rows
}

TEST(SplitKvPlan, CachesInE4m3AreRefusedByName) {
  const auto reason = [](const std::string& line, int architecture) {
    const Problem p = parse_problem("fwd " + line + " page(16) kv(e4m3)");
    const Limits limits = gpu_limits(architecture);
    return validate_config(select_forward(p, limits), p, limits).reason;
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  for (const int architecture : {80, 90}) {
    const auto of = [&](const char* line) { return reason(line, architecture); };
    EXPECT_EQ(of("bf16 hq4 hk2 d64 lens(1,1)"), "");
    EXPECT_TRUE(says(of("fp32 hq4 hk2 d64 lens(1,1)"), "beside fp32 has no kernel of a GPU"));
    EXPECT_TRUE(says(of("bf16 hq4 hk2 d72 lens(1,1)"), "multiples of 16 up to 256"));
    EXPECT_TRUE(says(of("bf16 hq4 hk2 d64 dv40 lens(1,1)"), "multiples of 16 up to 256"));
    EXPECT_TRUE(says(of("bf16 hq4 hk2 d576 dv512 lens(1,1)"), "multiples of 16 up to 256"));
    EXPECT_TRUE(says(of("bf16 causal hq4 hk2 d64 lens(1,1) chunk(9)"), "windows alone"));
    EXPECT_TRUE(
        says(of("bf16 hq4 hk2 d64 lens(1,1) strides_k(2176,72,136)"), "multiples of 16 elements"));
  }
  EXPECT_TRUE(says(reason("fp16 hq4 hk2 d64 lens(1,1)", 75), "compute capability 8.0"));
  // Nor is its configuration of other problems.
  const Problem narrow = parse_problem("fwd bf16 hq4 hk2 d64 lens(1,1) page(16) kv(e4m3)"),
                wide = parse_problem("fwd bf16 hq4 hk2 d64 lens(1,1) page(16)");
  const ForwardConfig c = select_forward(narrow, kSplitLimits);
  EXPECT_TRUE(says(validate_config(c, wide, kSplitLimits).reason, "is of caches in e4m3"));
  EXPECT_TRUE(says(validate_config(select_forward(wide, kSplitLimits), narrow, kSplitLimits).reason,
                   "takes kv_e4m3=true"));
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
