
#include "spec/fp32x3.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dfa/error.h"
#include "plan/registers.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/limits.h"

namespace dfa {
namespace {

const Limits kHopper = gpu_limits(90);

bool is_split_forward(const ForwardConfig& c) { return is_fp32x3(c); }

BackwardConfig named_backward(const Problem& p) {
  return gpu_backward_base("target=cuda_sm90", p, kHopper);
}

ForwardConfig named(const Problem& p) {
  return gpu_forward_base("ForwardConfig{target=cuda_sm90}", p, kHopper);
}

TEST(Sm90Fp32x3Legality, ForwardsInFp32OfDimsUpTo128MayTakeHopperAndDoWhereTheBackwardCan) {
  for (int d = 8; d <= 256; d += 8) {
    for (const int dv : {8, d, 128, 192}) {
      const Problem p{.dtype = DType::fp32, .sq = 100, .sk = 100, .d = d, .dv = dv};
      const bool fits = std::max(d, dv) > 32 && d <= 128 && dv <= 128;
      EXPECT_EQ(is_fp32x3(named(p)), fits) << d << " " << dv;
      EXPECT_EQ(fp32x3_candidates(p, kHopper).empty(), !fits) << d << " " << dv;
      EXPECT_EQ(is_fp32x3(select_forward(p, kHopper)), fits && d > 32) << d << " " << dv;
      EXPECT_TRUE(fp32x3_candidates(p, gpu_limits(100)).empty());
      EXPECT_EQ(select_forward(p, gpu_limits(100)).target, Target::cuda_sm80);
    }
  }
}

TEST(Sm90Fp32x3Legality, CandidatesOfAForwardHaveItInFrontAndThePortableOnesBehind) {
  const auto all = forward_candidates(parse_problem("fwd fp32 h1 s64 d64"), kHopper);
  EXPECT_TRUE(is_fp32x3(all.at(0)));
  EXPECT_FALSE(is_fp32x3(all.back()));
  EXPECT_GE(std::count_if(all.begin(), all.end(), is_split_forward), 4);
  for (const char* line : {"fwd bf16 h1 s64 d64", "fwd tf32 h1 s64 d64"}) {
    const auto others = forward_candidates(parse_problem(line), kHopper);
    EXPECT_TRUE(std::none_of(others.begin(), others.end(), is_split_forward)) << line;
  }
}

TEST(Sm90Fp32x3Legality, EveryRuleRefusesWithItsReason) {
  const Problem p = parse_problem("fwd fp32 h2 s64 d128");
  const ForwardConfig good = named(p);
  ASSERT_TRUE(validate_config(good, p, kHopper)) << validate_config(good, p, kHopper).reason;
  const auto refused = [&](auto change, const char* why) {
    ForwardConfig config = good;
    change(config);
    const std::string reason = validate_config(config, p, kHopper).reason;
    EXPECT_NE(reason.find(why), std::string::npos) << reason;
  };
  refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128");
  refused([](auto& c) { c.value_dim = 96; }, "dv=128 takes 128");
  refused([](auto& c) { c.block_q = 100; }, "block_q=100");
  refused([](auto& c) { c.block_q = 256, c.warps = 16; }, "block_q=256");
  refused([](auto& c) { c.warps = 4; }, "warps=4");
  refused([](auto& c) { c.ctas = 2; }, "ctas=2");
  refused([](auto& c) { c.block_k = 72; }, "block_k=72");
  refused([](auto& c) { c.stages = 0; }, "stages=0");
  refused([](auto& c) { c.q_stages = 2; }, "q_stages=2");
  refused([](auto& c) { c.pingpong = true; }, "pingpong");
  refused([](auto& c) { c.stages = 2; }, "shared memory");
  const auto reason = [&](const char* line, int architecture) {
    ForwardConfig config = good;
    return validate_config(config, parse_problem(line), gpu_limits(architecture)).reason;
  };
  for (const char* line : {"fwd fp32 h2 s64 d128 strides_v(16640,8320,130)",
                           "fwd fp32 h2 s64 d128 strides_q(16385,8192,128)",
                           "fwd fp32 h2 s64 d128 strides_o(16392,8196,128)"}) {
    EXPECT_NE(reason(line, 90).find("16-byte access"), std::string::npos) << line;
    EXPECT_TRUE(fp32x3_candidates(parse_problem(line), kHopper).empty()) << line;
  }
  EXPECT_NE(reason("fwd fp32 h2 s64 d128", 100).find("9.0 only"), std::string::npos);
  EXPECT_NE(reason("fwd bf16 h2 s64 d128", 90).find("problem is bf16"), std::string::npos);
  EXPECT_NE(reason("fwd fp32 h2 s64 d256", 90).find("up to 128"), std::string::npos);
  ForwardConfig wide = good;
  wide.block_q = 192, wide.warps = 12, wide.block_k = 64;
  EXPECT_FALSE(validate_config(wide, p, kHopper));
}

TEST(Sm90Fp32x3Legality, BackwardsOfDimsUpTo128TakeHopper) {
  for (int d = 8; d <= 256; d += 8) {
    for (const int dv : {8, d, 128, 192}) {
      const Problem p{
          .pass = Pass::backward, .dtype = DType::fp32, .sq = 100, .sk = 100, .d = d, .dv = dv};
      const bool fits = d > 32 && d <= 128 && dv <= 128;
      EXPECT_EQ(is_fp32x3(named_backward(p)), fits) << d << " " << dv;
      EXPECT_EQ(fp32x3_backward_candidates(p, kHopper).empty(), !fits) << d << " " << dv;
      EXPECT_EQ(is_fp32x3(select_backward(p, kHopper)), fits) << d << " " << dv;
      EXPECT_TRUE(fp32x3_backward_candidates(p, gpu_limits(100)).empty());
    }
  }
}

TEST(Sm90Fp32x3Legality, EveryRuleOfTheBackwardRefusesWithItsReason) {
  const Problem p = parse_problem("bwd fp32 h2 s64 d128");
  const BackwardConfig good = named_backward(p);
  ASSERT_TRUE(validate_config(good, p, kHopper)) << validate_config(good, p, kHopper).reason;
  const auto refused = [&](auto change, const char* why) {
    BackwardConfig config = good;
    change(config);
    const std::string reason = validate_config(config, p, kHopper).reason;
    EXPECT_NE(reason.find(why), std::string::npos) << reason;
  };
  refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128");
  refused([](auto& c) { c.value_dim = 96; }, "dv=128 takes 128");
  refused([](auto& c) { c.block_q = 32; }, "block_q=32");
  refused([](auto& c) { c.block_k = 128; }, "block_k=128");
  refused([](auto& c) { c.warps = 4; }, "warps=4");
  refused([](auto& c) { c.ctas = 2; }, "ctas=2");
  refused([](auto& c) { c.sharing = 2; }, "sharing=2");
  refused([](auto& c) { c.stages = 0; }, "stages=0");
  refused([](auto& c) { c.stages = 2; }, "shared memory");
  refused([](auto& c) { c.dq = DqAccumulation::atomic; }, "dq=atomic");
  refused([](auto& c) { c.dq = DqAccumulation::serialized_fused; }, "takes serialized");
  refused([](auto& c) { c.cluster = 2; }, "cluster=2 is of 16 bits");
  refused([](auto& c) { c.persistent = true; }, "persistent=true is of 16 bits");
  refused([](auto& c) { c.masked = true; }, "masked=true is of 16 bits");
  refused([](auto& c) { c.split_q = true; }, "split_q=true is of 16 bits");
  refused([](auto& c) { c.gqa_inner_loop = true; }, "gqa_inner_loop=true is of 16 bits");
  const auto reason = [&](const char* line, int architecture) {
    return validate_config(good, parse_problem(line), gpu_limits(architecture)).reason;
  };
  EXPECT_NE(reason("bwd fp32 h2 s64 d128 strides_o(16392,8196,128)", 90).find("16-byte access"),
            std::string::npos);
  EXPECT_NE(reason("bwd fp32 h2 s64 d128", 100).find("9.0 only"), std::string::npos);
  EXPECT_NE(reason("bwd bf16 h2 s64 d128", 90).find("problem is bf16"), std::string::npos);
}

// Scores of one kernel's products are not to the last bit those of another's.
TEST(Sm90Fp32x3Legality, BothPassesOfAProblemTakeItOrNone) {
  const Problem p = parse_problem("fwdbwd fp32 h2 s64 d64");
  const ForwardConfig usual = gpu_forward_base("target=cuda_sm80", p, kHopper);
  const ForwardConfig split = select_forward(p, kHopper);
  const BackwardConfig usual_backward = gpu_backward_base("target=cuda_sm80", p, kHopper);
  const BackwardConfig split_backward = select_backward(p, kHopper);
  EXPECT_TRUE(validate_pair(usual, usual_backward));
  EXPECT_TRUE(validate_pair(split, split_backward));
  EXPECT_FALSE(validate_pair(usual, split_backward));
  const Verdict refused = validate_pair(split, usual_backward);
  EXPECT_NE(refused.reason.find("the forward is cuda_sm90, the backward cuda_sm80"),
            std::string::npos)
      << refused.reason;
}

// exp(score - lse) is the forward's weight to the last bit only where both made the score alike.
TEST(Sm90Fp32x3Legality, WhateverIsPlannedBothPassesAreOfOneFamily) {
  for (int d = 8; d <= 256; d += 8) {
    for (const int dv : {8, 24, d, 64, 128, 192}) {
      for (const char* text : {"", "target=cuda_sm80", "ForwardConfig{target=cuda_sm80}",
                               "BackwardConfig{target=cuda_sm80}", "ForwardConfig{block_k=64}"}) {
        const Problem p{.dtype = DType::fp32, .sq = 100, .sk = 100, .d = d, .dv = dv};
        EXPECT_TRUE(
            validate_pair(gpu_forward_base(text, p, kHopper), gpu_backward_base(text, p, kHopper)))
            << text << " d" << d << " dv" << dv;
      }
    }
  }
}

TEST(Sm90Fp32x3Legality, ATextOfOnePassChoosesTheKernelsOfTheOtherToo) {
  const Problem p = parse_problem("fwdbwd fp32 h2 s64 d64");
  EXPECT_FALSE(is_fp32x3(gpu_backward_base("ForwardConfig{target=cuda_sm80}", p, kHopper)));
  EXPECT_FALSE(is_fp32x3(gpu_forward_base("BackwardConfig{target=cuda_sm80}", p, kHopper)));
  EXPECT_TRUE(is_fp32x3(gpu_backward_base("ForwardConfig{block_k=64}", p, kHopper)));
  const Problem half = parse_problem("fwdbwd bf16 h2 s64 d64");
  EXPECT_EQ(gpu_backward_base("ForwardConfig{target=cuda_sm80}", half, kHopper).target,
            Target::cuda_sm90);
}

TEST(Sm90Fp32x3Legality, WhereItCannotBeTheReasonIsNamed) {
  const auto reason = [](const char* line) {
    return fp32x3_fits(parse_problem(line), kHopper).reason;
  };
  EXPECT_EQ(reason("fwd fp32 h2 s64 d128"), "");
  EXPECT_NE(reason("fwd fp32 h2 s64 d256").find("up to 128, not d=256"), std::string::npos);
  EXPECT_NE(reason("fwd fp32 h2 s64 d32").find("pad heads"), std::string::npos);
  EXPECT_NE(reason("fwd fp32 h2 s64 d24 dv64").find("pad d=24 to 64"), std::string::npos)
      << reason("fwd fp32 h2 s64 d24 dv64");
  EXPECT_NE(
      fp32x3_fits(parse_problem("fwd fp32 h2 s64 d128"), gpu_limits(100)).reason.find("9.0 only"),
      std::string::npos);
}

// Its kernels know neither, so that a configuration which asks for them by name is refused, too.
TEST(Sm90Fp32x3Legality, PackedSequencesAndLogitsThatAreNotPlainAreRefusedByName) {
  const Problem plain{.pass = Pass::forward_backward, .dtype = DType::fp32, .sq = 64, .sk = 64};
  const ForwardConfig forward = fp32x3_candidates(plain, kHopper).at(0);
  const BackwardConfig backward = fp32x3_backward_candidates(plain, kHopper).at(0);
  ASSERT_TRUE(validate_config(forward, plain, kHopper));
  ASSERT_TRUE(validate_config(backward, plain, kHopper));
  for (const char* rest : {"lens(64,64)", "s64 sink", "s64 softcap(3)", "s64 alibi"}) {
    const Problem p = parse_problem(std::string("fwdbwd fp32 h1 d64 ") + rest);
    ForwardConfig packed = forward;
    packed.varlen = p.packed();
    EXPECT_FALSE(validate_config(packed, p, kHopper)) << rest;
    EXPECT_FALSE(validate_config(backward, p, kHopper)) << rest;
  }
}

TEST(Sm90Fp32x3Legality, TilesFitTheRegistersThatAThreadHas) {
  for (const char* line : {"fwd fp32 h1 s64 d64", "fwd fp32 h1 s64 d96", "fwd fp32 h1 s64 d128"}) {
    for (const ForwardConfig& c : fp32x3_candidates(parse_problem(line), kHopper)) {
      EXPECT_LE(expected_fp32x3_registers(c), c.query_registers());
      EXPECT_LE(c.smem_bytes(), kHopper.smem_bytes);
    }
  }
}

}  // namespace
}  // namespace dfa
