// Which kernels of Hopper's take a mask_mod or a score_mod, and what is said where none does.
#include <gtest/gtest.h>

#include <string>

#include "plan/hopper_plan.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

constexpr const char* kMask = " mask_mod(kv_idx<=q_idx)";
constexpr const char* kTanh = " score_mod(5.0f*tanh(score/5.0f)+0.1f*h)";
constexpr const char* kHeavy = " score_mod(sin(score)+cos(score))";

ForwardConfig named(const Problem& p) {
  return gpu_forward_base("ForwardConfig{target=cuda_sm90}", p, kHopper90);
}

TEST(HopperText, PlansAndConfigurationsThatNameItTakeIt) {
  for (const char* sizes :
       {" causal b1 h4 s512 d64", " b2 hq8 hk2 sq300 sk500 d128 window(60,9)",
        " causal b1 h8 s4096 d128", " causal b4 h16 s16384 d128", " b1 h2 s4096 d96",
        " b1 h4 s1000 d192", " causal b1 h4 s1000 d256", " b1 hq32 hk4 sq4 sk20000 d128",
        " causal hq4 hk2 lens(70,1,0,130) d64", " causal hq4 hk2 lens(700,1300) d128",
        " causal b1 h2 s512 d128 softcap(3) alibi sink", " b1 h2 s512 d128 bias(1,h)",
        " causal b1 h2 s512 d128 chunk(64)", " b1 h2 s512 d64 dropout(0.1,3)",
        " b1 h4 s512 d48 dv96", " causal b1 h4 s1000 d64 blocks(random,0.5,1,64x64,partial)",
        " b1 h4 s1000 d128 blocks(random,0.5,1,128x128,partial) softcap(3) sink",
        " causal b1 h4 s1000 d256 blocks(random,0.5,1,128x128)"}) {
    for (const char* type : {"bf16", "fp16"}) {
      for (const char* text : {kMask, kTanh}) {
        const Problem p = parse_problem(std::string("fwd ") + type + sizes + text);
        const ForwardConfig config = named(p);
        EXPECT_EQ(config.target, Target::cuda_sm90) << to_line(p);
        const Verdict legal = validate_config(config, p, kHopper90);
        EXPECT_TRUE(legal) << to_line(p) << ": " << legal.reason;
        EXPECT_TRUE(config.text);
        EXPECT_LE(config.block_q, p.dv > 64 ? 128 : 192);
        EXPECT_EQ(parse_config(to_text(config), ForwardConfig{}), config);
        const ForwardConfig usual = select_forward(p, kHopper90);
        EXPECT_TRUE(validate_config(usual, p, kHopper90)) << to_line(p);
        EXPECT_EQ(usual.target, Target::cuda_sm90) << to_line(p);
        EXPECT_TRUE(sm90_fits(p, kHopper90)) << to_line(p);
      }
    }
  }
}

TEST(HopperText, WhatItDoesNotTakeThePortableKernelsDoWithTheReason) {
  const auto reason = [](const std::string& line) {
    const Problem p = parse_problem(line);
    const ForwardConfig config = select_forward(p, kHopper90);
    EXPECT_EQ(config.target, Target::cuda_sm80) << line;
    EXPECT_TRUE(validate_config(config, p, kHopper90)) << line;
    EXPECT_THROW(asked_forward("target=cuda_sm90", p, kHopper90), InvalidArgument) << line;
    return sm90_fits(p, kHopper90).reason;
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(reason(std::string("fwd bf16 h2 s512 d64") + kHeavy),
      "up to 112 instructions a pair, and these have about 241; cuda_sm80 takes them");
  has(reason(std::string("fwd bf16 h2 s512 d512") + kMask), "for d and dv up to 256, not d=512");
  has(reason(std::string("fwd bf16 h2 s512 d32") + kMask), "pad heads");
}

TEST(HopperText, TilesThatHaveNoRegistersAreRefused) {
  const Problem p = parse_problem(std::string("fwd bf16 h2 s512 d64") + kMask);
  ForwardConfig config = named(p);
  config.block_q = 256, config.block_k = 64, config.warps = 16;
  EXPECT_NE(validate_config(config, p, kHopper90).reason.find("registers for 192"),
            std::string::npos);
}

TEST(HopperText, BackwardsArePlannedAsPlainOnesAreButWherePairsAreSlower) {
  for (const char* sizes :
       {" causal b1 h4 s512 d64", " causal b4 h16 s2048 d64",
        " b2 hq8 hk2 sq300 sk500 d128 window(60,9)", " causal b1 h4 s1000 d192 sink",
        " b1 h4 s4096 d192 deterministic", " causal b1 h4 s4096 d256", " b4 h16 s512 d256",
        " b1 h4 s512 d96 deterministic", " causal hq4 hk2 lens(70,1,0,130) d128",
        " causal hq8 hk2 lens(700,1300) d64", " causal hq8 hk2 lens(700,1300) d192",
        " causal b1 h2 s512 d128 chunk(64)", " causal b1 h2 s512 d256 chunk(64)"}) {
    for (const char* type : {"bf16", "fp16"}) {
      const std::string plain = std::string("bwd ") + type + sizes;
      const Problem p = parse_problem(plain + kMask);
      const BackwardConfig config = hopper_backward(p);
      EXPECT_EQ(config.target, Target::cuda_sm90) << to_line(p);
      const Verdict legal = validate_config(config, p, kHopper90);
      EXPECT_TRUE(legal) << to_line(p) << ": " << legal.reason;
      BackwardConfig expected = hopper_backward(parse_problem(plain));
      expected.text = true;
      if (p.d <= 64) expected.masked = false;
      if (p.d > 192 && !p.deterministic) {
        EXPECT_EQ(config.cluster, 1) << to_line(p);
      } else {
        EXPECT_EQ(config, expected) << to_line(p) << ": " << to_text(config);
      }
      EXPECT_EQ(parse_config(to_text(config), BackwardConfig{}), config);
      EXPECT_EQ(select_backward(p, kHopper90).target, Target::cuda_sm90);
      EXPECT_TRUE(sm90_backward_fits(p, kHopper90));
    }
  }
}

TEST(HopperText, BackwardsThatItDoesNotTakeAreThePortableKernels) {
  const auto reason = [](const std::string& line) {
    const Problem p = parse_problem(line);
    const BackwardConfig config = select_backward(p, kHopper90);
    EXPECT_EQ(config.target, Target::cuda_sm80) << line;
    EXPECT_TRUE(validate_config(config, p, kHopper90)) << line;
    return sm90_backward_fits(p, kHopper90).reason;
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(reason(std::string("bwd bf16 h2 s512 d64") + kHeavy), "and these have about 241");
  for (const char* beside : {" softcap(3)", " alibi", " bias(1,h)", " dropout(0.1,3)"}) {
    has(reason(std::string("bwd bf16 h2 s512 d128") + kMask + beside),
        "without softcap, alibi, bias and dropout; cuda_sm80 does");
  }
}

TEST(HopperText, NarrowPairsPassNoTilesByAndWideOnesTakeIt) {
  const Problem few = parse_problem(std::string("bwd bf16 causal h16 s2048 d64") + kMask);
  BackwardConfig narrow = hopper_backward(few);
  EXPECT_EQ(narrow.cluster, 2);
  EXPECT_TRUE(validate_config(narrow, few, kHopper90));
  narrow.masked = true;
  EXPECT_NE(validate_config(narrow, few, kHopper90).reason.find("masked=false"), std::string::npos);
  const BackwardConfig wide =
      hopper_backward(parse_problem(std::string("bwd bf16 causal b4 h16 s4096 d192") + kMask));
  EXPECT_TRUE(wide.sm90_wide_pair());
  EXPECT_EQ(wide.sm90_held_k(), 128);
  // Sums in turn leave no registers for columns of k and v beside a text.
  const BackwardConfig widest =
      hopper_backward(parse_problem(std::string("bwd bf16 h16 s4096 d256 deterministic") + kMask));
  EXPECT_TRUE(widest.sm90_wide_pair());
  EXPECT_EQ(widest.sm90_held_k() + widest.sm90_held_v(), 0);
}

// A list of blocks has kernels of its own, which have both gradients in a warpgroup.
TEST(HopperText, ListsOfBlocksAreBesideIt) {
  for (const char* dims : {"d64", "d96", "d128", "d128 dv64"}) {
    const std::string lists =
        std::string("bwd bf16 causal h16 s512 ") + dims + " blocks(random,0.5,1,128x128,partial)";
    const Problem p = parse_problem(lists + kMask);
    BackwardConfig expected = select_backward(parse_problem(lists), kHopper90);
    expected.text = true;
    const BackwardConfig config = select_backward(p, kHopper90);
    EXPECT_EQ(config, expected) << to_text(config);
    EXPECT_EQ(config.target, Target::cuda_sm90);
    EXPECT_TRUE(validate_config(config, p, kHopper90));
    EXPECT_TRUE(sm90_backward_fits(p, kHopper90));
  }
  const auto refused = [](const char* rest) {
    const Problem p = parse_problem(std::string("bwd bf16 h16 s512 ") + rest + kMask);
    EXPECT_EQ(select_backward(p, kHopper90).target, Target::cuda_sm80) << rest;
    return sm90_backward_fits(p, kHopper90).reason;
  };
  for (const char* rest : {"d64 dv128 blocks(128x128)", "d192 blocks(128x128)"}) {
    EXPECT_NE(refused(rest).find("score_mod beside them take block_k=128, and dv up to 64"),
              std::string::npos);
  }
  EXPECT_NE(refused("d128 blocks(64x64)").find("does not divide the blocks of 64 keys"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa
