// Chunked and prefix masks by Hopper's own kernels.
#include <gtest/gtest.h>

#include "dfa/problem.h"
#include "plan/hopper_plan.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

constexpr const char* kLines[] = {
    "causal hq8 hk2 s4096 d128 chunk(1000)",
    "causal hq8 hk2 s4096 d128 prefix(300) softcap(9) alibi sink",
    "window(700,0) hq8 hk2 s4096 d256 chunk(1024)",
    "causal hq4 hk2 d128 lens(900,70) chunk(64)",
};

TEST(HopperRanges, AreThePlansOfAHopper) {
  for (const char* rest : kLines) {
    const Problem p = parse_problem(std::string("fwdbwd bf16 ") + rest);
    const ForwardConfig forward = asked_forward("target=cuda_sm90", p, kHopper90);
    EXPECT_TRUE(forward.target == Target::cuda_sm90 && forward.ranges) << rest;
    EXPECT_EQ(forward, sm90_candidates(p, kHopper90)[0]);
    EXPECT_EQ(parse_config(to_text(forward), ForwardConfig{}), forward);
    EXPECT_EQ(select_forward(p, kHopper90), forward) << rest;

    const BackwardConfig backward = hopper_backward(p);
    EXPECT_TRUE(backward.target == Target::cuda_sm90 && backward.ranges) << rest;
    EXPECT_TRUE(validate_config(backward, p, kHopper90)) << rest;
    EXPECT_EQ(select_backward(p, kHopper90), backward) << rest;
    EXPECT_TRUE(sm90_fits(p, kHopper90) && sm90_backward_fits(p, kHopper90)) << rest;
  }
}

// Sums in a fixed order take registers that its backward has not, beside such masks.
TEST(HopperRanges, WhereBitsMustBeTheSameThePortableKernelsRun) {
  const Problem p = parse_problem(std::string("bwd bf16 deterministic ") + kLines[0]);
  EXPECT_TRUE(sm90_backward_candidates(p, kHopper90).empty());
  EXPECT_NE(sm90_backward_fits(p, kHopper90).reason.find("dq=atomic"), std::string::npos);
}

// What a query sees of a long cache is its chunk: there is nothing to deal out in a short one.
TEST(HopperRanges, KeysOfAnotherChunkAreNotCountedWhereKeysAreDealtOut) {
  const auto splits = [](const char* mask) {
    const std::string line = "fwd bf16 causal hq8 hk1 sq1 sk100000 d128";
    return select_forward(parse_problem(line + mask), kHopper90).num_splits;
  };
  EXPECT_GT(splits(""), 1);
  EXPECT_GT(splits(" chunk(50000)"), 1);
  EXPECT_EQ(splits(" chunk(64)"), 0);
}

// Tiles decide about bits: long company must not change those of a short sequence.
TEST(HopperRanges, TilesOfPagesAreTheSameWhateverTheCompany) {
  for (const char* d : {"d64", "d96", "d128", "d192", "d256"}) {
    for (const char* mask : {" chunk(64)", " prefix(90)"}) {
      const auto selected = [&](const std::string& lens) {
        return select_forward(parse_problem("fwd bf16 causal hq8 hk2 " + lens + d +
                                            " page(64) batch_invariant" + mask),
                              kHopper90);
      };
      const ForwardConfig alone = selected("lens(1) lens_k(70) ");
      EXPECT_TRUE(alone.target == Target::cuda_sm90 && alone.ranges) << d;
      for (const char* lens : {"lens(1,9) lens_k(70,20000) ", "lens(1,4000) lens_k(70,9000) ",
                               "lens(4000,900,1) lens_k(4000,900,70) "}) {
        EXPECT_EQ(selected(lens), alone) << d << mask << " " << lens;
      }
    }
  }
}

// A kernel of windows would show keys that are hidden, and one of chunks divide by 0.
TEST(HopperRanges, TheKernelIsThatOfTheMask) {
  for (const char* type : {"bf16", "fp32", "e4m3"}) {
    const std::string line = std::string("fwd ") + type + " causal h2 s640 d128";
    const Problem window = parse_problem(line), chunks = parse_problem(line + " chunk(64)");
    ForwardConfig config = select_forward(window, kHopper90);
    ASSERT_EQ(config.target, Target::cuda_sm90);
    EXPECT_FALSE(validate_config(config, chunks, kHopper90)) << type;
    config.ranges = true;
    EXPECT_FALSE(validate_config(config, window, kHopper90)) << type;
  }
}

}  // namespace
}  // namespace dfa
