// What is chosen for lists of blocks on a GPU.
#include <gtest/gtest.h>

#include "plan/hopper_plan.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// Whatever the blocks' sides are, tiles divide them, and some are legal.
TEST(BlocksOnGpu, TilesDivideBlocks) {
  int seen = 0;
  for (const int capability : {75, 80, 86, 90}) {
    const Limits limits = gpu_limits(capability);
    for (const char* type : {"fp16", "fp32"}) {
      for (const int d : {16, 64, 128, 256}) {
        for (const char* sides : {"16x16", "16x128", "128x16", "48x80", "64x64", "96x160",
                                  "128x128", "256x512", "1040x16"}) {
          // Warps that share the many columns share 32 queries at least, in 16 bits.
          const Problem plain = parse_problem(std::string("fwdbwd ") + type + " causal h2 s3000 d" +
                                              std::to_string(d));
          if (d == 256 && std::string(type) == "fp16" && std::string(sides) != "128x128") continue;
          if (!validate_config(select_backward(plain, limits), plain, limits)) continue;
          const std::string line = std::string("fwdbwd ") + type + " causal h2 s3000 d" +
                                   std::to_string(d) + " blocks(" + sides + ",partial)";
          const Problem p = parse_problem(line);
          const ForwardConfig forward = select_forward(p, limits);
          const BackwardConfig backward = select_backward(p, limits);
          EXPECT_TRUE(validate_config(forward, p, limits))
              << line << " " << validate_config(forward, p, limits).reason;
          EXPECT_TRUE(validate_config(backward, p, limits))
              << line << " " << validate_config(backward, p, limits).reason;
          EXPECT_EQ(p.blocks->block_q % forward.block_q, 0);
          EXPECT_EQ(p.blocks->block_k % backward.dq_block_k, 0);
          ++seen;
        }
      }
    }
  }
  EXPECT_GE(seen, 4 * 2 * 3 * 9);
}

TEST(BlocksOnGpu, WhatDoesNotFitIsRefusedWithAReason) {
  const Limits limits = gpu_limits(80);
  const Problem p = parse_problem("fwdbwd bf16 h2 s256 d64 blocks(64x64)");
  ForwardConfig forward = select_forward(p, limits);
  forward.block_q = 128;
  EXPECT_NE(
      validate_config(forward, p, limits).reason.find("does not divide the blocks of 64 queries"),
      std::string::npos);
  forward = select_forward(p, limits);
  forward.blocks = false;
  EXPECT_NE(validate_config(forward, p, limits).reason.find("lists of blocks take blocks=true"),
            std::string::npos);
  BackwardConfig backward = select_backward(p, limits);
  backward.dq = DqAccumulation::serialized;
  EXPECT_NE(validate_config(backward, p, limits).reason.find("dq=separate"), std::string::npos);
  const Problem biased = parse_problem("fwdbwd bf16 h2 s256 d64 bias(1,1) blocks(64x64)");
  EXPECT_NE(validate_config(select_backward(biased, limits), biased, limits)
                .reason.find("has no backward on a GPU"),
            std::string::npos);
  EXPECT_EQ(sm90_backward_fits(p, kHopper90).reason,
            "block_q=128 does not divide the blocks of 64 queries");
}

// A refusal of the backward names sides; those have one, and smaller ones of queries have none.
TEST(BlocksOnGpu, ARefusalNamesTheSidesThatFit) {
  int refused = 0;
  for (const int capability : {75, 80, 86, 90}) {
    const Limits limits = gpu_limits(capability);
    for (const char* head : {"d64", "d160", "d192 dv128", "d256"}) {
      for (const char* sides : {"16x128", "48x16", "32x128", "64x64"}) {
        const std::string line = std::string("fwdbwd fp16 h2 s3000 ") + head + " blocks(";
        const Problem p = parse_problem(line + sides + ")");
        const Verdict fits = backward_fits(p, limits);
        EXPECT_EQ(bool(fits), !backward_candidates(p, limits).empty()) << to_line(p);
        if (fits) continue;
        ++refused;
        EXPECT_NE(fits.reason.find("have no backward with d="), std::string::npos) << fits.reason;
        EXPECT_NE(fits.reason.find("sides in multiples of 32 queries and 16 keys"),
                  std::string::npos)
            << fits.reason;
        EXPECT_TRUE(backward_fits(parse_problem(line + "32x16)"), limits)) << fits.reason;
        EXPECT_FALSE(backward_fits(parse_problem(line + "16x16)"), limits)) << fits.reason;
        EXPECT_THROW(asked_backward("", p, limits), InvalidArgument);
      }
    }
  }
  // 16 and 48 queries; of d192 dv128 on cuda_sm75 alone, whose copies pass through registers.
  EXPECT_EQ(refused, (4 * 2 + 1) * 2);
}

Problem listed(const std::string& rest) { return parse_problem("fwd bf16 hq8 hk2 s4096 " + rest); }

// By Hopper's own kernel: whatever multiples of 64 the blocks' sides are.
TEST(HopperBlocks, TilesDivideBlocks) {
  for (const char* d : {"d40", "d64", "d96", "d128", "d192", "d256", "d192 dv128", "d64 dv256"}) {
    for (const char* sides : {"64x64", "128x128", "128x64", "64x256", "192x192", "256x512"}) {
      const Problem p = listed(std::string(d) + " blocks(" + sides + ",h,partial)");
      const auto candidates = sm90_candidates(p, kHopper90);
      EXPECT_FALSE(candidates.empty()) << to_line(p);
      for (const ForwardConfig& c : candidates) {
        EXPECT_TRUE(c.blocks && c.cluster == 1 && c.pack_gqa == 1 && !c.pingpong);
        EXPECT_EQ(p.blocks->block_q % c.block_q, 0);
        EXPECT_EQ(p.blocks->block_k % c.block_k, 0);
        EXPECT_EQ(c.block_k % 32, 0);
        EXPECT_EQ(parse_config(to_text(c), ForwardConfig{}), c);
      }
    }
  }
}

TEST(HopperBlocks, OtherBlocksTakeThePortableKernelAndSayWhy) {
  const auto reason = [](const std::string& rest) {
    return sm90_fits(listed(rest), kHopper90).reason;
  };
  for (const char* sides : {"32x64", "48x128", "80x64"}) {
    EXPECT_NE(reason(std::string("d128 blocks(") + sides + ")").find("block_q=64 does not divide"),
              std::string::npos);
  }
  for (const char* sides : {"64x16", "128x48", "64x80"}) {
    EXPECT_NE(reason(std::string("d128 blocks(") + sides + ")").find("block_k=64 does not divide"),
              std::string::npos);
  }
  EXPECT_NE(reason("d128 chunk(64) blocks(64x64)").find("beside windows"), std::string::npos);
  EXPECT_NE(reason("d128 dropout(0.1,3) blocks(64x64)").find("no dropout"), std::string::npos);
  EXPECT_NE(reason("d128 bias(1,h) blocks(64x64)").find("adds no bias"), std::string::npos);
  EXPECT_NE(reason("d32 blocks(64x64)").find("up to 32"), std::string::npos);
  for (const char* line :
       {"fwd fp32 h2 s300 d64 blocks(64x64)", "fwd e4m3 h2 s300 d64 blocks(64x64)"}) {
    EXPECT_NE(sm90_fits(parse_problem(line), kHopper90).reason.find("no lists of blocks"),
              std::string::npos)
        << line;
  }
}

TEST(HopperBlocks, IsThePlanOfAHopper) {
  for (const char* rest :
       {"d64 blocks(128x128,partial)", "d128 blocks(128x128)", "causal d256 blocks(64x64,b,h)",
        "d192 dv128 softcap(9) alibi sink window(900,0) blocks(128x128,partial)"}) {
    const Problem p = listed(rest);
    const ForwardConfig named = asked_forward("target=cuda_sm90", p, kHopper90);
    EXPECT_EQ(named.target, Target::cuda_sm90);
    EXPECT_TRUE(named.blocks);
    EXPECT_EQ(named, sm90_candidates(p, kHopper90)[0]);
    EXPECT_EQ(select_forward(p, kHopper90), named) << rest;
    EXPECT_EQ(forward_candidates(p, kHopper90)[0], named);
    EXPECT_TRUE(sm90_fits(p, kHopper90));
  }
}

// Of blocks that its tiles divide, d up to 128 and sums as they come.
TEST(HopperBlocks, TheBackwardIsThePlanOfAHopper) {
  for (const char* rest : {"d64 blocks(128x128,partial)", "causal d128 blocks(64x256,b,h)",
                           "d96 dv64 window(900,0) blocks(128x128,partial)"}) {
    const Problem p = parse_problem(std::string("fwdbwd fp16 hq8 hk2 s4096 ") + rest);
    const BackwardConfig named = hopper_backward(p);
    EXPECT_TRUE(named.blocks && named.dq == DqAccumulation::atomic && named.cluster == 1) << rest;
    EXPECT_EQ(named.target, Target::cuda_sm90);
    EXPECT_TRUE(validate_config(named, p, kHopper90));
    EXPECT_EQ(parse_config(to_text(named), BackwardConfig{}), named);
    EXPECT_EQ(asked_backward("target=cuda_sm90", p, kHopper90), named);
    EXPECT_EQ(asked_forward("target=cuda_sm90", p, kHopper90).target, Target::cuda_sm90);
    EXPECT_EQ(select_backward(p, kHopper90), named) << rest;
    EXPECT_EQ(backward_candidates(p, kHopper90)[0], named);
    EXPECT_TRUE(sm90_backward_fits(p, kHopper90));
  }
}

TEST(HopperBlocks, OtherBackwardsTakeThePortableKernelAndSayWhy) {
  const auto reason = [](const std::string& rest) {
    const Problem p = parse_problem("bwd bf16 hq8 hk2 s4096 " + rest);
    EXPECT_TRUE(validate_config(select_backward(p, kHopper90), p, kHopper90)) << rest;
    return sm90_backward_fits(p, kHopper90).reason;
  };
  const auto says = [&](const std::string& rest, const char* part) {
    EXPECT_NE(reason(rest).find(part), std::string::npos) << rest << ": " << reason(rest);
  };
  says("d64 blocks(64x128)", "block_q=128 does not divide");
  says("d128 blocks(64x64)", "block_k=128 does not divide");
  says("d192 blocks(128x128)", "take d and dv up to 128");
  says("d128 softcap(3) blocks(128x128)", "without softcap, alibi, bias and dropout");
  says("d128 deterministic blocks(128x128)", "other bits in every run");
  says("d64 dv128 blocks(128x128)", "value_dim up to head_dim");
  says("d128 chunk(64) blocks(128x128)", "beside windows");
  says("d64 dropout(0.1,3) blocks(128x128)", "without softcap, alibi, bias and dropout");
  says("d128 dropout(0.1,3) blocks(128x128)", "without softcap, alibi, bias and dropout");
  const Problem p = parse_problem("bwd bf16 hq8 hk2 s4096 d64 blocks(128x128)");
  const auto refused = [&](const char* text) {
    return validate_config(parse_config(text, hopper_backward(p)), p, kHopper90).reason;
  };
  EXPECT_NE(refused("cluster=2").find("cluster=1"), std::string::npos);
  EXPECT_NE(refused("dq=serialized").find("dq=atomic"), std::string::npos);
  EXPECT_NE(refused("blocks=false").find("lists of blocks take blocks=true"), std::string::npos);
  const Problem plain = parse_problem("bwd bf16 hq8 hk2 s4096 d64");
  EXPECT_EQ(validate_config(hopper_backward(p), plain, kHopper90).reason,
            "blocks=true is of problems with lists of blocks");
}

TEST(HopperBlocks, RulesKeepKernelsOfListsApart) {
  const Problem lists = listed("d128 blocks(128x128)"), plain = listed("d128");
  ForwardConfig of_lists = sm90_candidates(lists, kHopper90)[0];
  const ForwardConfig of_ranges = select_forward(plain, kHopper90);
  EXPECT_EQ(validate_config(of_lists, plain, kHopper90).reason,
            "blocks=true is of problems with lists of blocks");
  EXPECT_EQ(validate_config(of_ranges, lists, kHopper90).reason,
            "lists of blocks take blocks=true");
  const auto refused = [&](const char* text) {
    const ForwardConfig c = parse_config(text, of_lists);
    return validate_config(c, lists, kHopper90).reason;
  };
  EXPECT_NE(refused("cluster=2").find("blocks=true takes cluster=1"), std::string::npos);
  EXPECT_NE(refused("pack_gqa=4").find("pack_gqa=1"), std::string::npos);
  EXPECT_NE(refused("num_splits=4").find("num_splits=0"), std::string::npos);
  EXPECT_NE(refused("block_k=80").find("does not divide the blocks of 128 keys"),
            std::string::npos);
  const Problem odd = listed("d128 blocks(128x80)");
  EXPECT_NE(validate_config(parse_config("block_k=80", of_lists), odd, kHopper90)
                .reason.find("multiples of 32"),
            std::string::npos);
  for (const char* line : {"fwd fp32 h2 s300 d64", "fwd e4m3 h2 s300 d64"}) {
    const Problem p = parse_problem(line);
    ForwardConfig c = select_forward(p, kHopper90);
    c.blocks = true;
    EXPECT_EQ(validate_config(c, p, kHopper90).reason,
              "blocks=true is of problems with lists of blocks")
        << line;
  }
}

}  // namespace
}  // namespace dfa
