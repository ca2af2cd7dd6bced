#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/launch.h"
#include "plan/hopper_plan.h"
#include "plan/select.h"
#include "plan/select_backward.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/fp32x3.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// The backward that a plan takes where its text names Hopper.
TEST(Sm90BackwardLegality, HalfPrecisionBackwardsMayTakeHopper) {
  for (const DType type : {DType::bf16, DType::fp16, DType::fp32}) {
    for (int d = 8; d <= 256; d += 8) {
      for (const int dv : {8, d, 128, 192}) {
        const Problem p{.dtype = type, .sq = 100, .sk = 100, .d = d, .dv = dv};
        const bool half = type != DType::fp32;
        const bool narrow = half && d > 32 && d <= 128 && dv <= 128;
        const bool wide = half && d > 64 && std::max(d, dv) > 128;
        const BackwardConfig named = hopper_backward(p);
        EXPECT_EQ(named.target == Target::cuda_sm90 && !is_fp32x3(named), narrow || wide)
            << d << " " << dv;
        EXPECT_EQ(sm90_backward_candidates(p, kHopper90).empty(), !narrow && !wide)
            << d << " " << dv;
        EXPECT_TRUE(sm90_backward_candidates(p, gpu_limits(100)).empty());
      }
    }
  }
}

TEST(Sm90BackwardLegality, BackwardsItCannotRunTakeThePortableKernelsWithTheReason) {
  const auto reason = [&](const char* line) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(select_backward(p, kHopper90).target, Target::cuda_sm80) << line;
    return sm90_backward_fits(p, kHopper90).reason;
  };
  EXPECT_NE(reason("bwd tf32 h1 s64 d64").find("fp32, not tf32"), std::string::npos);
  EXPECT_NE(reason("bwd bf16 h1 s64 d32").find("pad d=32 to 64"), std::string::npos);
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv256").find("d from 65 on"), std::string::npos);
  EXPECT_NE(reason("bwd fp16 h2 s64 d256 strides_k(33280,16640,260)").find("strides of k"),
            std::string::npos);
  EXPECT_TRUE(sm90_backward_fits(parse_problem("bwd bf16 h1 s64 d256"), kHopper90));
  EXPECT_TRUE(sm90_backward_fits(parse_problem("bwd bf16 h1 s64 d64"), kHopper90));
}

TEST(Sm90BackwardLegality, HoppersBackwardOfWideHeadsIsTheDefault) {
  for (const char* line : {"bwd bf16 b4 h8 s4096 d256", "bwd fp16 b4 h8 s4096 d192 dv128"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(backward_candidates(p, kHopper90).back().target, Target::cuda_sm80);
    EXPECT_EQ(gpu_backward_base("target=cuda_sm80", p, kHopper90).target, Target::cuda_sm80);
    const BackwardConfig named = select_backward(p, kHopper90);
    EXPECT_EQ(hopper_backward(p), named);
    EXPECT_EQ(named.target, Target::cuda_sm90);
    EXPECT_EQ(named.block_k, 64);
    EXPECT_TRUE(named.sm90_is_wide());
    EXPECT_LE(named.smem_bytes(), kHopper90.smem_bytes);
  }
}

TEST(Sm90BackwardLegality, HoppersBackwardIsTheDefaultAndTextNamesOthers) {
  const Problem p = parse_problem("bwd bf16 b4 h32 s4096 d64");
  const auto forced = [&](const char* text) {
    return legal_config(text, gpu_backward_base(text, p, kHopper90), p, kHopper90);
  };
  EXPECT_EQ(forced("").target, Target::cuda_sm90);
  EXPECT_EQ(forced("").dq, DqAccumulation::serialized_fused);
  EXPECT_EQ(forced("BackwardConfig{target=cuda_sm80}").target, Target::cuda_sm80);
  EXPECT_EQ(forced("BackwardConfig{target=cuda_sm90,dq=atomic}").dq, DqAccumulation::atomic);
  EXPECT_THROW(forced("BackwardConfig{target=cuda_sm80,dq=atomic}"), InvalidArgument);
  EXPECT_THROW(forced("BackwardConfig{target=cuda_sm90,sharing=2}"), InvalidArgument);
}

TEST(Sm90BackwardLegality, LogitsDropoutAndBiasesAreTaken) {
  for (const char* line :
       {"bwd bf16 h4 s640 d64 softcap(3) alibi", "bwd bf16 causal b4 h16 s4096 d64 dropout(0.1,3)",
        "bwd fp16 h8 s300 d128 bias(1,h)", "bwd bf16 h4 s640 d256 dropout(0.1,3)",
        "bwd bf16 causal h4 d96 lens(640,30) bias(b,1) dropout(0.1,3)",
        "bwd bf16 causal h4 s640 d128 chunk(64) alibi bias(1,h) dropout(0.1,3)",
        "bwd bf16 h4 s640 d64 deterministic bias(1,h)"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(select_backward(p, kHopper90).target, Target::cuda_sm90) << line;
    EXPECT_TRUE(sm90_backward_fits(p, kHopper90)) << line;
    const BackwardConfig named = hopper_backward(p);
    EXPECT_EQ(named.target, Target::cuda_sm90) << line;
    EXPECT_TRUE(validate_config(named, p, kHopper90)) << line;
    // Beside dropout alone a warpgroup has registers for both gradients.
    EXPECT_EQ(named.sm90_is_wide(), p.d > 128 || p.bias || p.alibi || p.softcap != 0) << line;
    EXPECT_EQ(named.dropout, p.dropout > 0);
    EXPECT_EQ(named.bias, p.bias.has_value());
    EXPECT_LE(named.smem_bytes(), kHopper90.smem_bytes);
    EXPECT_EQ(parse_config(to_text(named), BackwardConfig{}), named);
    for (const BackwardConfig& c : sm90_backward_candidates(p, kHopper90)) {
      EXPECT_TRUE(validate_config(c, p, kHopper90)) << to_text(c);
    }
  }
}

TEST(Sm90BackwardLegality, WhatDropoutAndBiasesHaveNoRegistersForIsRefused) {
  const auto reason = [](const char* line, const char* changes) {
    const Problem p = parse_problem(line);
    BackwardConfig changed = parse_config(changes, hopper_backward(p));
    return validate_config(changed, p, kHopper90).reason;
  };
  const auto says = [&](const char* line, const char* changes, const char* part) {
    EXPECT_NE(reason(line, changes).find(part), std::string::npos) << reason(line, changes);
  };
  const char* const dropping = "bwd bf16 h4 s640 d128 dropout(0.1,3)";
  EXPECT_EQ(reason(dropping, ""), "");
  says("bwd bf16 h4 s640 d192 dropout(0.1,3)", "dropout=false", "dropout takes dropout=true");
  says("bwd bf16 h4 s640 d128", "dropout=true", "dropout=true is of problems with dropout");
  says(dropping, "block_k=32", "block_k=32");
  EXPECT_EQ(reason(dropping, "block_k=64,cluster=1,dq=atomic,persistent=false,split_q=false"), "");
  says("bwd bf16 h4 s640 d128 alibi bias(1,h)", "bias=false", "not those of the problem");
  const char* const narrow = "bwd bf16 h4 s640 d64 dropout(0.1,3)";
  says(narrow, "cluster=2,dq=atomic_fused,persistent=true", "bytes of shared memory");
  EXPECT_EQ(reason(narrow, "block_k=64,block_q=64,cluster=2,dq=atomic,persistent=false"), "");
  says("bwd bf16 h4 s640 d64 bias(1,h)", "cluster=2,dq=atomic_fused,persistent=true",
       "d from 65 on");
  says("bwd bf16 h4 d64 lens(640) dropout(0.1,3)", "cluster=2,dq=serialized",
       "has registers for block_k=64");
  says("bwd bf16 h4 d128 lens(640) dropout(0.1,3)", "cluster=2", "has registers for block_k=64");
  const char* const widest = "bwd bf16 h4 s640 d256 dropout(0.1,3)";
  says(widest, "persistent=true", "has registers for");
  says(widest, "dq=serialized,persistent=false", "has registers for");
  says(widest, "cluster=1,persistent=false", "has registers for");
  const auto portable = [](const char* line, const char* part) {
    const Problem p = parse_problem(line);
    EXPECT_TRUE(sm90_backward_candidates(p, kHopper90).empty()) << line;
    EXPECT_TRUE(validate_config(select_backward(p, kHopper90), p, kHopper90)) << line;
    EXPECT_NE(sm90_backward_fits(p, kHopper90).reason.find(part), std::string::npos)
        << sm90_backward_fits(p, kHopper90).reason;
  };
  portable("bwd bf16 h4 s640 d192 bias(1,h)", "biases for d and dv up to 128");
  portable("bwd bf16 h4 s640 d256 dropout(0.1,3) deterministic", "has registers for");
  portable("bwd bf16 h4 d256 lens(640) dropout(0.1,3)", "registers for");
  portable("bwd bf16 h4 s640 d32 dropout(0.1,3)", "pad d=32");
}

TEST(Sm90BackwardLegality, OrderedSumsWithAlibiOfTheWidestHeadsHaveSingleBlocks) {
  for (const char* logits : {" alibi", " softcap(3) alibi"}) {
    const Problem p =
        parse_problem(std::string("bwd bf16 b4 h16 s4096 d256 deterministic") + logits);
    const BackwardConfig planned = select_backward(p, kHopper90);
    EXPECT_EQ(planned.target, Target::cuda_sm90);
    EXPECT_EQ(planned.cluster, 1);
    const std::string pair = to_text(parse_config("cluster=2", planned));
    EXPECT_NE(validate_config(parse_config(pair, planned), p, kHopper90)
                  .reason.find("alibi=true of cuda_sm90's backward"),
              std::string::npos);
  }
}

// The portable kernel of a bias's gradient stands beside Hopper's own kernels.
TEST(Sm90BackwardLegality, TheGradientOfABiasHasAPortableKernel) {
  for (const char* rest : {"d64", "d96", "d128", "d128 softcap(3)", "d64 dropout(0.1,3)"}) {
    const Problem p = parse_problem(std::string("bwd bf16 b2 h4 s640 bias(1,h) ") + rest);
    const auto launches = backward_launches(p, hopper_backward(p));
    ASSERT_EQ(launches.size(), 4u) << rest;
    EXPECT_EQ(launches[1].name, "dbias");
    const BackwardConfig planned = bias_gradient_config(p);
    EXPECT_TRUE(validate_config(planned, p, kHopper90));
    EXPECT_NE(
        launches[1].entry.find("dfa::sm80_bias_gradient<dfa::" + to_text(planned).substr(0, 14)),
        std::string::npos)
        << launches[1].entry;
    EXPECT_NE(launches[1].entry.find("Target::cuda_sm80"), std::string::npos);
    EXPECT_EQ(launches[2].name, "dk dv");
  }
}

// Texts of results and profiles name the same kernels by what their fields were called.
TEST(Sm90BackwardLegality, FormerTextsNameTheSameKernels) {
  const auto planned = [](const char* line) { return hopper_backward(parse_problem(line)); };
  const BackwardConfig other = planned("bwd bf16 causal h16 s4096 d96");
  const std::string of_128 =
      "BackwardConfig{.target=Target::cuda_sm90,.element=DType::bf16,.head_dim=128,"
      ".value_dim=128,.block_q=64,.block_k=128,.warps=8,.stages=2,.ctas=1,.dq=DqSum::";
  EXPECT_EQ(parse_config(of_128 + "ordered,.dq_block_q=64,.early_turns=true,.cluster=2}", other),
            planned("bwd bf16 h16 s16384 d128 deterministic"));
  EXPECT_EQ(parse_config(of_128 + "unordered,.dq_block_q=64,.cluster=2,.rounds_dq=true,"
                                  ".zeroes_dq=true,.persistent=true,.skips_hidden=true,"
                                  ".nested_keys=true}",
                         other),
            planned("bwd bf16 causal b4 h16 s4096 d128"));
  EXPECT_EQ(parse_config("rounds_dq=false", planned("bwd bf16 b4 h16 s1024 d128")).dq,
            DqAccumulation::serialized);
  EXPECT_EQ(parse_config("dq=recomputed", BackwardConfig{}).dq, DqAccumulation::separate);
}

TEST(Sm90BackwardLegality, FormerNamesOfFieldsAreRead) {
  const BackwardConfig backward{.target = Target::cuda_sm90};
  EXPECT_TRUE(parse_config("parts_last=true", backward).split_q);
  EXPECT_TRUE(parse_config("heads_by_tile=true", backward).gqa_inner_loop);
  const ForwardConfig forward = parse_config("packed_heads=4,key_shares=8,held_columns=64",
                                             ForwardConfig{.target = Target::cuda_sm90});
  EXPECT_EQ(forward.pack_gqa, 4);
  EXPECT_EQ(forward.num_splits, 8);
  EXPECT_EQ(forward.q_columns_in_regs, 64);
}

TEST(Sm90BackwardLegality, FormerTextsOfKernelsThatAreNoMoreAreRefused) {
  const BackwardConfig pair = hopper_backward(parse_problem("bwd bf16 causal b4 h16 s4096 d128"));
  const auto refused = [&](const char* text) {
    try {
      parse_config(text, pair);
    } catch (const InvalidArgument& error) {
      return std::string(error.what()).find(text) != std::string::npos;
    }
    return false;
  };
  for (const char* text :
       {"dq_group=true", "bulk_dq=true", "nested_keys=false", "zeroes_dq=false",
        "keys_in_registers=true", "dq_block_q=128", "early_turns=true", "skip=perhaps"}) {
    EXPECT_TRUE(refused(text)) << text;
  }
  for (const char* text : {"dq_group=false", "bulk_dq=false", "nested_keys=true",
                           "keys_in_registers=false", "dq_block_q=64"}) {
    EXPECT_EQ(parse_config(text, pair), pair) << text;
  }
}

TEST(Sm90BackwardLegality, WideBackwardsAddUpInOrderWhereAProblemAsksForTheSameBits) {
  const BackwardConfig free = hopper_backward(parse_problem("bwd bf16 h1 s64 d256"));
  EXPECT_EQ(free.dq, DqAccumulation::atomic);
  const Problem same = parse_problem("bwd bf16 h1 s64 d256 deterministic");
  EXPECT_EQ(hopper_backward(same).dq, DqAccumulation::serialized);
  EXPECT_TRUE(hopper_backward(same).early_release());
  EXPECT_NE(
      validate_config(free, same, kHopper90).reason.find("deterministic problems take serialized"),
      std::string::npos);
  for (const BackwardConfig& config : sm90_backward_candidates(same, kHopper90)) {
    EXPECT_EQ(config.dq, DqAccumulation::serialized) << to_text(config);
  }
  EXPECT_TRUE(hopper_backward(parse_problem("bwd bf16 h1 s64 d128")).dq_serialized());
}

TEST(Sm90BackwardLegality, WidePairsAreTheDefaultWhereTheyFit) {
  const auto pairs = [](const char* line) {
    int count = 0;
    for (const auto& c : sm90_backward_candidates(parse_problem(line), kHopper90)) {
      count += c.cluster == 2;
    }
    return count;
  };
  EXPECT_EQ(pairs("bwd bf16 h1 s4096 d192"), 3);  // in turn, too, and fused
  EXPECT_EQ(pairs("bwd fp16 causal h1 s4096 d136 dv64"), 3);
  EXPECT_EQ(pairs("bwd bf16 h1 s4096 d256"), 2);
  EXPECT_EQ(pairs("bwd bf16 h1 s4096 d256 dv192"), 0);  // they do not fit
  EXPECT_EQ(pairs("bwd bf16 h1 s4096 d192 deterministic"), 1);
  const Problem p = parse_problem("bwd bf16 h1 s4096 d192");
  BackwardConfig pair = hopper_backward(p);
  EXPECT_EQ(pair.cluster, 2);
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 causal h1 s1024 d192")).cluster, 2);
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 causal h1 s512 d256")).cluster, 2);
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 causal h1 s256 d256")).cluster, 1);
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 causal h1 s1024 d256")).cluster, 2);
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 causal h1 s4096 d256")).cluster, 2);
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 h1 s64 d192")).cluster, 1);
  const BackwardConfig in_turn =
      hopper_backward(parse_problem("bwd bf16 h1 s4096 d192 deterministic"));
  EXPECT_EQ(in_turn.cluster, 2);
  EXPECT_TRUE(in_turn.dq == DqAccumulation::serialized && in_turn.early_release());
  const auto reason = [&] { return validate_config(pair, p, kHopper90).reason; };
  EXPECT_EQ(reason(), "");
  pair.dq = DqAccumulation::atomic;  // by name
  EXPECT_EQ(reason(), "");
  pair.dq = DqAccumulation::serialized;
  EXPECT_NE(reason().find("persistent=true with dq=atomic"), std::string::npos);
}

TEST(Sm90BackwardLegality, WidePairsStayWhereWorksAreShort) {
  const auto stays = [](const char* line) {
    return hopper_backward(parse_problem(line)).persistent;
  };
  EXPECT_TRUE(stays("bwd bf16 h1 s1024 d256"));
  EXPECT_TRUE(stays("bwd bf16 causal h1 s1024 d192"));
  EXPECT_FALSE(stays("bwd bf16 h1 s4096 d256"));
  EXPECT_FALSE(stays("bwd bf16 h1 s16384 d192"));
  EXPECT_FALSE(stays("bwd bf16 h1 s1024 d256 deterministic"));
  EXPECT_FALSE(stays("bwd bf16 h1 s1024 d256 window(100,0)"));
  EXPECT_FALSE(stays("bwd bf16 h1 s1024 d256 dv192"));  // pairs do not fit
}

TEST(Sm90BackwardLegality, PairsInTurnMayWalkMore) {
  const auto cluster = [](const char* line) {
    return hopper_backward(parse_problem(line)).cluster;
  };
  EXPECT_EQ(cluster("bwd bf16 h1 s4096 d256 window(30,0)"), 1);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s1024 d256 deterministic"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s512 d256 deterministic"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s256 d256 deterministic"), 1);
}

TEST(Sm90BackwardLegality, LongSumsComeAsTheyComeAndAreZeroedAndRoundedInTheSameGrid) {
  const auto helped = [](const char* line) {
    const BackwardConfig c = hopper_backward(parse_problem(line));
    return c.dq == DqAccumulation::atomic_fused && c.persistent;
  };
  for (const char* line : {"bwd bf16 h1 s4096 d128",
                           "bwd fp16 h1 s2049 d96",
                           "bwd bf16 h1 s16384 d128",
                           "bwd bf16 causal h1 s4096 d128",
                           "bwd bf16 causal h1 s8192 d112",
                           "bwd bf16 h1 s4096 d128 dv64",
                           "bwd bf16 causal h1 s4096 d96",
                           "bwd fp16 causal h1 s8192 d64",
                           "bwd bf16 h1 s2048 d192",
                           "bwd bf16 causal h1 s16384 d192",
                           "bwd fp16 causal h1 s512 d256",
                           "bwd bf16 h1 s2048 d256",
                           "bwd bf16 h1 s8192 d128 window(4095,0)",
                           "bwd bf16 h1 s65536 d96 window(4095,0)",
                           "bwd bf16 h1 s16384 d64 window(1023,0)",
                           "bwd bf16 h1 s65536 d192 window(4095,0)",
                           "bwd bf16 h1 s4096 d192 window(255,0)",
                           "bwd fp16 h1 s16384 d256 window(1023,0)",
                           "bwd bf16 h8 s1024 d128",
                           "bwd bf16 h16 s1024 d128",
                           "bwd bf16 h4 s2048 d64",  // a round
                           "bwd bf16 causal h8 s1024 d96"}) {
    EXPECT_TRUE(helped(line)) << line;
  }
  for (const char* line :
       {"bwd bf16 h16 s2048 d128", "bwd bf16 h1 sq128 sk4096 d128", "bwd bf16 h16 s4096 d64",
        "bwd bf16 causal h64 s2048 d96", "bwd bf16 causal h16 s16384 d128",
        "bwd bf16 h1 s4096 d128 window(1000,0)", "bwd bf16 h1 s4096 d128 deterministic",
        "bwd bf16 h1 s1024 d192", "bwd bf16 h1 s16384 d192", "bwd bf16 h1 s4096 d256",
        "bwd bf16 causal h1 s8192 d256", "bwd bf16 causal h1 s1024 d256 deterministic",
        "bwd bf16 h1 s8192 d256 window(4095,0)", "bwd bf16 h1 s4096 d256 window(255,0)",
        "bwd bf16 h1 s16384 d128 window(1023,0)", "bwd bf16 h1 s8192 d64 window(1023,0)",
        "bwd bf16 h1 s8192 d192 window(4095,0) deterministic"}) {
    EXPECT_FALSE(helped(line)) << line;
  }
}

TEST(Sm90BackwardLegality, PairsInTurnWalkATileOfAllQueryHeadsUnderAMask) {
  const auto by_tile = [](const char* line) {
    return hopper_backward(parse_problem(line)).gqa_inner_loop;
  };
  EXPECT_TRUE(by_tile("bwd bf16 causal b4 hq32 hk8 s2048 d128"));
  EXPECT_TRUE(by_tile("bwd fp16 causal b16 hq6 hk3 s1024 d64"));
  EXPECT_TRUE(by_tile("bwd bf16 causal b4 hq32 hk8 s4096 d128 deterministic"));
  EXPECT_TRUE(by_tile("bwd bf16 causal b4 hq32 hk8 s4096 d192 dv128 deterministic"));
  for (const char* line : {"bwd bf16 causal b4 h32 s2048 d128",       // heads of their own
                           "bwd bf16 b4 hq32 hk8 s2048 d128",         // work tiles of one length
                           "bwd bf16 causal b2 hq32 hk8 s4096 d128",  // none waits for a turn
                           "bwd bf16 b4 hq32 hk8 s2048 d128 window(511,0)",
                           "bwd bf16 causal b4 hq32 hk8 s2048 d256 deterministic"}) {
    EXPECT_FALSE(by_tile(line)) << line;
  }
  const Problem p = parse_problem("bwd bf16 causal b2 hq32 hk8 s4096 d128");
  BackwardConfig config = hopper_backward(p);
  config.gqa_inner_loop = true;
  EXPECT_EQ(
      validate_config(config, p, kHopper90).reason.find("gqa_inner_loop=true is of cluster=2"), 0u);
}

TEST(Sm90BackwardLegality, PairsOfBlocksMakeDqWhereAQuerySeesEnoughKeys) {
  const auto cluster = [](const char* line) {
    return hopper_backward(parse_problem(line)).cluster;
  };
  EXPECT_EQ(cluster("bwd bf16 h1 s512 d128"), 2);
  EXPECT_EQ(cluster("bwd fp16 causal h1 s1024 d96"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s16384 d128 dv64 deterministic"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s256 d128"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s384 d128"), 1);
  EXPECT_EQ(cluster("bwd bf16 h1 s16384 d128 window(200,200)"), 2);
  EXPECT_EQ(cluster("bwd bf16 b4 h16 s4096 d128 window(64,64)"), 2);
  EXPECT_EQ(cluster("bwd bf16 b16 h16 s512 d64 window(64,64)"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s16384 d128 window(63,0)"), 1);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s512 d128"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s256 d128"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s384 d128"), 1);
  EXPECT_EQ(cluster("bwd bf16 h1 s1024 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s8192 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s1024 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s512 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s256 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s4096 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s1024 d64 dv128"), 1);
}

TEST(Sm90BackwardLegality, DqIsRoundedInTheSameGridWhereThatWasFaster) {
  const auto rounds = [](const char* line) {
    return hopper_backward(parse_problem(line)).dq_fused();
  };
  EXPECT_TRUE(rounds("bwd bf16 h1 s1024 d128"));
  EXPECT_TRUE(rounds("bwd fp16 causal h1 s8192 d96"));
  EXPECT_TRUE(rounds("bwd bf16 causal h1 s512 d64"));
  EXPECT_TRUE(hopper_backward(parse_problem("bwd bf16 causal h1 s512 d64")).early_release());
  EXPECT_FALSE(rounds("bwd bf16 h1 s512 d128"));
  EXPECT_FALSE(rounds("bwd bf16 causal h1 s511 d64"));
  EXPECT_FALSE(hopper_backward(parse_problem("bwd bf16 causal h1 s384 d64")).early_release());
  EXPECT_FALSE(rounds("bwd bf16 causal h16 s16384 d128"));
  EXPECT_FALSE(rounds("bwd bf16 h1 s1024 d64 dv128"));
  EXPECT_FALSE(hopper_backward(parse_problem("bwd bf16 h1 s1024 d64 dv128")).early_release());
}

TEST(Sm90BackwardLegality, KeysAreInRegistersWhereTheyFit) {
  const auto held = [](const char* line) {
    return hopper_backward(parse_problem(line)).holds_keys();
  };
  EXPECT_TRUE(held("bwd bf16 h1 s1024 d64"));
  EXPECT_TRUE(held("bwd fp16 causal h1 s300 d40 dv56"));
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d64 dv128"));
  EXPECT_TRUE(held("bwd bf16 h1 s1024 d96"));
  EXPECT_TRUE(held("bwd fp16 causal h1 s2048 d80 dv64"));
  EXPECT_FALSE(held("bwd bf16 h1 s100 d96"));  // by single blocks
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d128"));
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d128 dv64"));
  EXPECT_TRUE(held("bwd bf16 causal h1 s1024 d192"));
  EXPECT_TRUE(held("bwd bf16 h1 s4096 d192 deterministic"));
  EXPECT_TRUE(held("bwd fp16 causal h1 s4096 d256"));
  EXPECT_TRUE(held("bwd fp16 h1 s4096 d256 dv64 deterministic"));
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d256"));        // by pairs that stay
  EXPECT_FALSE(held("bwd bf16 causal h1 s512 d256"));  // by single blocks
  EXPECT_FALSE(held("bwd bf16 h1 s4096 d256 dv192"));
}

TEST(Sm90BackwardLegality, ColumnsInRegistersAreAsManyAsLast) {
  const auto held = [](const char* line) {
    const BackwardConfig c = hopper_backward(parse_problem(line));
    return std::pair(c.sm90_held_k(), c.sm90_held_v());
  };
  EXPECT_EQ(held("bwd bf16 h1 s1024 d64"), std::pair(64, 64));
  EXPECT_EQ(held("bwd bf16 h1 s1024 d128"), std::pair(0, 0));
  EXPECT_EQ(held("bwd bf16 h1 s4096 d192"), std::pair(128, 128));
  EXPECT_EQ(held("bwd bf16 h1 s4096 d256"), std::pair(32, 48));
  EXPECT_EQ(held("bwd bf16 h1 s4096 d256 deterministic"), std::pair(16, 64));
  EXPECT_EQ(held("bwd bf16 h1 s4096 d96 dv256"), std::pair(32, 128));
}

TEST(Sm90BackwardLegality, SumsOfLongSequencesComeAsTheyComeUnlessBitsMatter) {
  const auto atomic = [](const char* line) {
    return hopper_backward(parse_problem(line)).dq_atomic();
  };
  EXPECT_TRUE(atomic("bwd bf16 h1 s16384 d128"));
  EXPECT_FALSE(atomic("bwd bf16 h1 s16384 d128 deterministic"));
  EXPECT_FALSE(atomic("bwd bf16 h16 s2048 d128"));
  EXPECT_FALSE(atomic("bwd bf16 h16 s8192 d64"));
  EXPECT_FALSE(atomic("bwd bf16 h1 s65536 d128 window(1000,0)"));
  EXPECT_FALSE(atomic("bwd bf16 h1 s8192 d64 window(4000,0)"));
  EXPECT_TRUE(atomic("bwd bf16 h1 s16384 d64"));
  EXPECT_FALSE(atomic("bwd bf16 h1 s16384 d64 deterministic"));
  EXPECT_TRUE(atomic("bwd bf16 causal h1 s16384 d64"));
  EXPECT_FALSE(atomic("bwd bf16 causal h1 s16384 d64 deterministic"));
}

TEST(Sm90BackwardLegality, PairsOfAMaskedProblemSkipHiddenTilesAndNestTheirKeys) {
  const Problem p = parse_problem("bwd bf16 causal b16 h16 s1024 d128");
  const BackwardConfig planned = hopper_backward(p);
  EXPECT_TRUE(planned.masked);
  EXPECT_EQ(parse_config(to_text(planned), BackwardConfig{}), planned);
  EXPECT_TRUE(hopper_backward(parse_problem("bwd fp16 h1 s4096 d64 window(2048,0)")).masked);
  const BackwardConfig all = hopper_backward(parse_problem("bwd bf16 b16 h16 s1024 d128"));
  EXPECT_FALSE(all.masked);
  EXPECT_EQ(to_text(all).find("masked"), std::string::npos);
}

TEST(Sm90BackwardLegality, PairsStayWhereThatWasFaster) {
  const auto stay = [](const char* line) {
    return hopper_backward(parse_problem(line)).persistent;
  };
  EXPECT_TRUE(stay("bwd bf16 h1 s1024 d128"));
  EXPECT_TRUE(stay("bwd fp16 causal h1 s2048 d96"));
  EXPECT_TRUE(stay("bwd bf16 causal h1 s16384 d64"));
  EXPECT_FALSE(stay("bwd bf16 h1 s4096 d128 deterministic"));
  EXPECT_FALSE(stay("bwd bf16 causal h16 s4096 d128 deterministic"));
  EXPECT_FALSE(stay("bwd bf16 h1 s4096 d96 deterministic"));
  EXPECT_TRUE(stay("bwd bf16 causal h1 s4096 d96"));
  EXPECT_TRUE(stay("bwd bf16 h1 s16384 d128"));  // sums as they come
  EXPECT_FALSE(stay("bwd bf16 h1 s16384 d128 deterministic"));
  EXPECT_FALSE(stay("bwd bf16 causal h16 s16384 d128"));
  EXPECT_TRUE(stay("bwd bf16 causal h1 s16384 d128"));  // few work tiles, in parts
  EXPECT_FALSE(stay("bwd bf16 h1 s128 d64"));
  const Problem p = parse_problem("bwd bf16 h1 s1024 d128");
  BackwardConfig config = hopper_backward(p);
  EXPECT_NE(to_text(config).find(".persistent=true"), std::string::npos) << to_text(config);
  config.cluster = 1;
  EXPECT_NE(validate_config(config, p, kHopper90).reason.find("are of cluster=2"),
            std::string::npos);
}

// What a text says may not go with the usual tile: then another is meant.
TEST(Sm90BackwardLegality, TextsAreSaidOfATileTheyAreLegalWith) {
  const Problem p = parse_problem("bwd bf16 h16 s2048 d128");
  const auto meant = [&](const char* text) {
    return legal_config(text, gpu_backward_base(text, p, kHopper90), p, kHopper90);
  };
  EXPECT_EQ(meant("BackwardConfig{stages=2}").cluster, 2);
  EXPECT_EQ(meant("BackwardConfig{cluster=2}"), hopper_backward(p));
  EXPECT_EQ(meant("BackwardConfig{cluster=1}").cluster, 1);
  EXPECT_THROW(meant("BackwardConfig{stages=9}"), InvalidArgument);
}

// A text of results and profiles names one kernel, whatever is the default since.
TEST(Sm90BackwardLegality, WholeTextsAreOffWhereTheySayNothing) {
  const Problem p = parse_problem("bwd bf16 h1 s64 d64");
  const BackwardConfig usual = hopper_backward(p);
  BackwardConfig other = usual;
  other.cluster = 2;
  other.persistent = true;
  EXPECT_EQ(parse_config(to_text(usual), other), usual);
  EXPECT_TRUE(parse_config("stages=2", other).persistent);

  const ForwardConfig forward = gpu_forward_base("ForwardConfig{target=cuda_sm90}",
                                                 parse_problem("fwd bf16 h1 s64 d64"), kHopper90);
  ForwardConfig base = forward;
  base.cluster = 2;
  EXPECT_EQ(parse_config(to_text(forward), base), forward);
  EXPECT_EQ(parse_config("stages=2", base).cluster, 2);
}

TEST(Sm90BackwardLegality, EveryRuleOfTheBackwardRefusesWithItsReason) {
  const Problem p = parse_problem("bwd bf16 h2 s64 d128");
  const BackwardConfig good = hopper_backward(p);
  ASSERT_TRUE(validate_config(good, p, kHopper90));
  const auto refused = [&](auto change, const char* why) {
    BackwardConfig config = good;
    change(config);
    return validate_config(config, p, kHopper90).reason.find(why) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& c) { c.element = DType::fp16; }, "element=fp16"));
  EXPECT_TRUE(refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 64; }, "block_k=64"));
  EXPECT_TRUE(refused([](auto& c) { c.warps = 12; }, "warps=12"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 128; }, "head_dim=128 takes 64"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 1; }, "stages=1"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 5; }, "stages=5"));
  EXPECT_TRUE(refused([](auto& c) { c.dq = DqAccumulation::separate; }, "dq=separate"));
  EXPECT_TRUE(refused([](auto& c) { c.dq = DqAccumulation::atomic_fused; }, "of persistent=true"));
  EXPECT_TRUE(refused([](auto& c) { c.cluster = 4; }, "cluster=4; 1 or 2"));
  EXPECT_TRUE(refused([](auto& c) { c.masked = true; }, "masked=true are of cluster=2"));
  EXPECT_TRUE(refused([](auto& c) { c.split_q = true; }, "split_q=true is of persistent"));
  const auto reason = [&](const char* line, BackwardConfig config) {
    return validate_config(config, parse_problem(line), kHopper90).reason;
  };
  BackwardConfig pair = hopper_backward(parse_problem("bwd bf16 h1 s64 d64 dv128"));
  pair.cluster = 2;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", pair).find("has value_dim up to 64, not 128"),
            std::string::npos);
  pair.dq = DqAccumulation::serialized_fused;
  pair.cluster = 1;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", pair).find("has value_dim up to head_dim"),
            std::string::npos);
  BackwardConfig wide = hopper_backward(parse_problem("bwd bf16 h1 s64 d256"));
  wide.block_k = 128;
  EXPECT_NE(reason("bwd bf16 h1 s64 d256", wide).find("takes 64, 8 and 1"), std::string::npos);
  wide.block_k = 64;
  wide.cluster = 2;
  wide.masked = true;
  EXPECT_NE(reason("bwd bf16 h1 s64 d256", wide).find("takes masked=false"), std::string::npos);
  wide.cluster = 1;
  wide.masked = false;
  wide.head_dim = 64;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv256", wide).find("d from 65 on"), std::string::npos);
  BackwardConfig narrow = hopper_backward(parse_problem("bwd bf16 h1 s64 d64"));
  EXPECT_NE(reason("bwd bf16 h1 s64 d32", narrow).find("pad d=32"), std::string::npos);
  narrow.value_dim = 128;
  narrow.dq = DqAccumulation::atomic;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", narrow).find("spill"), std::string::npos);
}

}  // namespace
}  // namespace dfa
