
#include <gtest/gtest.h>

#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// Tiles that are too large for a card's shared memory: the reason names them and the largest that
// fit.
TEST(PortableTiles, WhatDoesNotFitNamesTheSidesAndWhatFits) {
  const Limits limits = gpu_limits(86);
  const Problem p = parse_problem("fwdbwd bf16 h2 s3000 d256");
  BackwardConfig backward = select_backward(p, limits);
  backward.block_k = 128;
  backward.block_q = 16;
  backward.warps = 8;
  backward.sharing = 1;
  EXPECT_EQ(validate_config(backward, p, limits).reason,
            "block_k=128, block_q=16: the tiles take " + std::to_string(backward.smem_bytes()) +
                " bytes of shared memory but a thread block has 101376; block_k=64, block_q=16 "
                "would fit");
  backward.block_k = 64;
  EXPECT_LE(backward.smem_bytes(), limits.smem_bytes);
  backward.block_q = 32;
  EXPECT_GT(backward.smem_bytes(), limits.smem_bytes);
  backward = select_backward(p, limits);
  backward.dq_block_q = 128;
  backward.dq_warps = 8;
  EXPECT_NE(validate_config(backward, p, limits).reason.find("dq_block_q=64, dq_block_k="),
            std::string::npos)
      << validate_config(backward, p, limits).reason;
  ForwardConfig forward = select_forward(p, limits);
  forward.block_k = 128;
  forward.stages = 4;
  EXPECT_NE(validate_config(forward, p, limits).reason.find(", block_k=16 would fit"),
            std::string::npos)
      << validate_config(forward, p, limits).reason;
}

constexpr int kArchitectures[] = {80, 86, 87, 89, 90, 100, 120};

Problem problem_of(const char* line) { return parse_problem(line); }

// Hopper's memory, but the portable kernels.
Limits portable_limits() {
  Limits limits = gpu_limits(90);
  limits.highest = Target::cuda_sm80;
  return limits;
}

TEST(GpuLegality, DefaultsAreLegalForEveryHeadDimOnEveryArchitecture) {
  for (const int architecture : kArchitectures) {
    const Limits limits = gpu_limits(architecture);
    for (const DType type : {DType::bf16, DType::fp16, DType::tf32, DType::fp32}) {
      for (int d = 8; d <= 256; d += 8) {
        for (const int dv : {8, d, 256}) {
          const Problem p{.dtype = type, .sq = 100, .sk = 100, .d = d, .dv = dv};
          const ForwardConfig forward = select_forward(p, limits);
          const BackwardConfig backward = select_backward(p, limits);
          EXPECT_TRUE(validate_config(forward, p, limits))
              << to_text(forward) << " " << architecture;
          EXPECT_TRUE(validate_config(backward, p, limits))
              << to_text(backward) << " " << architecture;
        }
      }
    }
  }
}

void expect_legal_defaults(const Problem& p, const Limits& limits) {
  const ForwardConfig forward = select_forward(p, limits);
  const Verdict legal = validate_config(forward, p, limits);
  EXPECT_TRUE(legal) << to_line(p) << ": " << legal.reason << " " << to_text(forward);
  EXPECT_EQ(forward.target, Target::cuda_sm80) << to_line(p);
  if (p.pass == Pass::forward) return;
  const BackwardConfig backward = select_backward(p, limits);
  const Verdict also = validate_config(backward, p, limits);
  EXPECT_TRUE(also) << to_line(p) << ": " << also.reason << " " << to_text(backward);
  EXPECT_EQ(backward.target, Target::cuda_sm80) << to_line(p);
}

// Hopper has kernels of its own for some: as the portable ones, it stands for sm_80 with its
// memory.
TEST(GpuLegality, HeadsAbove256AreOfThePortableKernelsOnEveryArchitecture) {
  for (const int architecture : kArchitectures) {
    const Limits limits = architecture == 90 ? portable_limits() : gpu_limits(architecture);
    for (const char* dtype : {"bf16", "fp16", "tf32", "fp32"}) {
      const std::string both = std::string("fwdbwd ") + dtype,
                        forward = std::string("fwd ") + dtype;
      for (int d = 264; d <= 512; d += 8) {
        const std::string dims = " d" + std::to_string(d);
        expect_legal_defaults(parse_problem(both + " h2 s100" + dims), limits);
        expect_legal_defaults(
            parse_problem(both + " causal h2 s100 deterministic d512 dv" + std::to_string(d)),
            limits);
        expect_legal_defaults(parse_problem(both + " h2 s100 d8 dv" + std::to_string(d)), limits);
        for (const char* rest :
             {" h2 s100 softcap(3) alibi sink", " h2 s100 window(9,9)", " h2 s100 causal prefix(9)",
              " hq4 hk2 causal lens(1,70) lens_k(90,100) chunk(16)",
              " hq4 hk2 causal lens(1,70) lens_k(90,100) softcap(3) alibi sink"}) {
          expect_legal_defaults(parse_problem(both + rest + dims), limits);
        }
        expect_legal_defaults(parse_problem(forward + " h2 s100 bias(1,h)" + dims), limits);
      }
      for (const char* rest : {" hq16 hk1 s100", " hq16 hk1 causal b4 sq1 sk900",
                               " hq16 hk1 lens(1,2) lens_k(70,90) page(16) softcap(3) sink"}) {
        expect_legal_defaults(parse_problem(forward + rest + " d576 dv512"), limits);
      }
    }
  }
}

TEST(GpuLegality, TextsAreOfThePortableKernelsOnEveryArchitecture) {
  for (const int architecture : kArchitectures) {
    const Limits limits = architecture == 90 ? portable_limits() : gpu_limits(architecture);
    for (const char* dtype : {"bf16", "fp16", "tf32", "fp32"}) {
      for (const char* rest :
           {" h2 s1000 d64 mask_mod(kv_idx<=q_idx)",
            " hq8 hk1 sq1 sk9000 b9 d128 score_mod(2*score)",
            " causal h2 s1000 d128 deterministic score_mod(tanh(score)) softcap(3) alibi sink",
            " hq4 hk2 causal lens(1,70) lens_k(90,100) d64 mask_mod(b!=h)",
            " hq8 hk1 lens(1,1) lens_k(900,100) d64 mask_mod(b!=h)",
            " h2 s100 d512 score_mod(2*score)", " h2 s300 d96 bias(b,h) mask_mod(h<1)"}) {
        const Problem p = parse_problem(std::string("fwdbwd ") + dtype + rest);
        if (p.bias && p.d > 256) continue;
        expect_legal_defaults(p, limits);
        Problem forward = p;
        forward.pass = Pass::forward;
        expect_legal_defaults(forward, limits);
        EXPECT_TRUE(select_forward(p, limits).text);
        EXPECT_TRUE(select_backward(p, limits).text);
      }
    }
  }
}

TEST(GpuLegality, TextsAreRefusedByNameWhereNoKernelTakesThem) {
  const Limits limits = portable_limits();
  const auto reason = [&](const char* line, const char* config) {
    const Problem p = parse_problem(line);
    const ForwardConfig base = select_forward(p, limits);
    return validate_config(parse_config(config, base), p, limits).reason;
  };
  const char* text = "fwd bf16 hq8 hk1 lens(1,1) lens_k(90,10) d64 mask_mod(b!=h)";
  EXPECT_NE(reason("fwd bf16 h2 lens(9) d64 page(16) mask_mod(b!=h)", "")
                .find("keys in pages take no mask_mod"),
            std::string::npos);
  EXPECT_NE(reason(text, "text=false").find("text are not those of the problem"),
            std::string::npos);
  EXPECT_NE(reason("fwd bf16 h2 s64 d64", "text=true").find("text are not those of the problem"),
            std::string::npos);
  EXPECT_NE(reason(text, "split_kv=true, num_splits=4, block_k=64, warps=4, block_q=16")
                .find("split_kv=true has no mask_mod"),
            std::string::npos);
}

TEST(GpuLegality, HeadsAbove256AreRefusedByNameWhereNoKernelTakesThem) {
  const Limits hopper = gpu_limits(90), turing = gpu_limits(75);
  for (const char* line : {"fwdbwd bf16 h1 s64 d264 dv256", "fwdbwd fp16 h1 s64 d64 dv512"}) {
    const Problem p = parse_problem(line);
    EXPECT_NE(sm90_fits(p, hopper).reason.find("d and dv up to 256"), std::string::npos) << line;
    EXPECT_NE(sm90_backward_fits(p, hopper).reason.find("d and dv up to 256"), std::string::npos);
    EXPECT_TRUE(sm90_candidates(p, hopper).empty());
    EXPECT_TRUE(sm90_backward_candidates(p, hopper).empty());
  }
  const Problem halves = parse_problem("fwdbwd fp16 h1 s64 d512");
  EXPECT_NE(validate_config(select_forward(halves, turing), halves, turing)
                .reason.find("cuda_sm75 has d and dv up to 256"),
            std::string::npos);
  EXPECT_NE(validate_config(select_backward(halves, turing), halves, turing)
                .reason.find("cuda_sm75 has d and dv up to 256"),
            std::string::npos);
  const Problem biased = parse_problem("fwdbwd bf16 h1 s64 d512 bias(1,h)");
  EXPECT_NE(validate_config(select_backward(biased, hopper), biased, hopper)
                .reason.find("a bias has no backward"),
            std::string::npos);
  const Problem listed = parse_problem("fwdbwd bf16 h1 s128 d512 blocks(64x64,h,partial)");
  EXPECT_NE(validate_config(select_forward(listed, hopper), listed, hopper)
                .reason.find("lists of blocks take d and dv up to 256"),
            std::string::npos);
  EXPECT_NE(validate_config(select_backward(listed, hopper), listed, hopper)
                .reason.find("lists of blocks take d and dv up to 256"),
            std::string::npos);
  const Problem whole = parse_problem("fwdbwd fp32 h1 s64 d512");
  EXPECT_FALSE(fp32x3_fits(whole, hopper));
  BackwardConfig shared = select_backward(whole, hopper);
  shared.sharing = 2;
  EXPECT_FALSE(validate_config(shared, whole, hopper));
}

TEST(GpuLegality, HopperHasKernelsForHeadsAbove256) {
  const Limits hopper = gpu_limits(90);
  const auto targets = [&](const std::string& line) {
    const Problem p = parse_problem(line);
    const ForwardConfig forward = select_forward(p, hopper);
    EXPECT_TRUE(validate_config(forward, p, hopper)) << line;
    if (p.pass == Pass::forward) return std::pair(forward.target, Target::cuda_sm90);
    const BackwardConfig backward = select_backward(p, hopper);
    EXPECT_TRUE(validate_config(backward, p, hopper)) << line;
    return std::pair(forward.target, backward.target);
  };
  constexpr std::pair kBoth{Target::cuda_sm90, Target::cuda_sm90},
      kForward{Target::cuda_sm90, Target::cuda_sm80}, kNone{Target::cuda_sm80, Target::cuda_sm80};
  for (int d = 264; d <= 512; d += 8) {
    EXPECT_EQ(targets("fwdbwd bf16 causal hq4 hk2 s100 deterministic d" + std::to_string(d)),
              kBoth);
    EXPECT_EQ(targets("fwdbwd fp16 h2 s100 window(9,9) sink d512 dv" + std::to_string(d)), kBoth);
  }
  EXPECT_EQ(targets("fwd bf16 hq16 hk1 s100 d576 dv512"), kBoth);
  for (const char* rest : {"h2 s100 softcap(3)", "h2 s100 alibi", "h2 s100 causal chunk(16)"}) {
    EXPECT_EQ(targets(std::string("fwdbwd bf16 d512 ") + rest), kForward) << rest;
  }
  for (const char* line :
       {"fwdbwd fp32 h2 s100 d512", "fwd bf16 h2 s100 d512 bias(1,h)",
        "fwd bf16 hq2 hk1 d512 lens(9,3) lens_k(70,9) page(12)", "fwdbwd bf16 h2 s128 d512 dv256",
        "fwdbwd bf16 h2 s128 d512 score_mod(2*score)"}) {
    EXPECT_EQ(targets(line).first, kNone.first) << line;
  }
  const Problem dropping = parse_problem("fwdbwd bf16 h2 s100 d512 dropout(0.1,3)");
  EXPECT_FALSE(validate_config(select_forward(dropping, hopper), dropping, hopper));
  EXPECT_FALSE(validate_config(select_backward(dropping, hopper), dropping, hopper));
}

TEST(GpuLegality, CandidatesAreLegalAndTheirTextParsesBack) {
  const Limits limits = gpu_limits(90);
  const Problem p = problem_of("fwdbwd bf16 causal h4 s512 d72 dv40");
  const auto forward = forward_candidates(p, limits);
  ASSERT_GT(forward.size(), 3u);
  for (const ForwardConfig& config : forward) {
    EXPECT_TRUE(validate_config(config, p, limits));
    EXPECT_EQ(parse_config(to_text(config), ForwardConfig{}), config);
  }
  const auto backward = backward_candidates(p, limits);
  ASSERT_GT(backward.size(), 3u);
  for (const BackwardConfig& config : backward) {
    EXPECT_TRUE(validate_config(config, p, limits));
    EXPECT_EQ(parse_config(to_text(config), BackwardConfig{}), config);
  }
}

TEST(GpuLegality, AProcessorRefusesGpuTargetsAndAGpuThoseOfAProcessor) {
  const Problem p = problem_of("fwdbwd bf16 h1 s64 d64");
  const Limits processor{.highest = Target::cpu_amx, .cache_bytes = 1 << 20};
  const Limits gpu = gpu_limits(90);
  const ForwardConfig for_gpu = select_forward(p, gpu);
  EXPECT_NE(validate_config(for_gpu, p, processor).reason.find("cuda_sm90 is not there"),
            std::string::npos);
  const ForwardConfig for_processor{.target = Target::cpu_portable, .element = DType::bf16};
  ASSERT_TRUE(validate_config(for_processor, p, processor));
  EXPECT_NE(validate_config(for_processor, p, gpu).reason.find("cpu_portable"), std::string::npos);
}

TEST(GpuLegality, TuringTakesFp16AndFp32In64KiBOfSharedMemory) {
  const Limits turing = gpu_limits(75);
  for (const char* line :
       {"fwdbwd fp16 h1 s64 d8", "fwdbwd fp16 h1 s64 d256", "fwdbwd fp16 h1 s64 d192 dv128",
        "fwdbwd fp32 h1 s64 d192", "fwd fp32 h1 s64 d256"}) {
    const Problem p = problem_of(line);
    const ForwardConfig forward = select_forward(p, turing);
    EXPECT_TRUE(validate_config(forward, p, turing))
        << line << validate_config(forward, p, turing).reason;
    EXPECT_EQ(forward.target, Target::cuda_sm75);
    EXPECT_LE(forward.ctas * forward.smem_bytes(), 64 << 10) << line;
    if (p.pass == Pass::forward) continue;
    const BackwardConfig backward = select_backward(p, turing);
    EXPECT_TRUE(validate_config(backward, p, turing))
        << line << validate_config(backward, p, turing).reason;
    EXPECT_LE(backward.ctas * backward.smem_bytes(), 64 << 10) << line;
    EXPECT_LE(backward.dq_ctas * backward.dq_smem_bytes(), 64 << 10) << line;
  }
  const auto reason = [&](const char* line) {
    const Problem p = problem_of(line);
    return validate_config(select_forward(p, turing), p, turing).reason;
  };
  EXPECT_NE(reason("fwd bf16 h1 s64 d64").find("bf16 takes compute capability 8.0"),
            std::string::npos);
  EXPECT_NE(reason("fwd tf32 h1 s64 d64").find("tf32 takes"), std::string::npos);
  const Problem wide = problem_of("bwd fp32 h1 s64 d256");
  EXPECT_NE(
      validate_config(select_backward(wide, turing), wide, turing).reason.find("shared memory"),
      std::string::npos);
}

TEST(GpuLegality, KernelsOfTuringMayBeForcedOnLaterMachinesButNotTheOtherWay) {
  const Problem p = problem_of("fwdbwd fp16 h1 s64 d128");
  const Limits turing = gpu_limits(75), hopper = gpu_limits(90);
  const ForwardConfig forward = gpu_forward_base("target=cuda_sm75", p, hopper);
  EXPECT_EQ(forward, select_forward(p, turing));
  EXPECT_TRUE(validate_config(forward, p, hopper));
  EXPECT_EQ(gpu_backward_base("target=cuda_sm75", p, hopper), select_backward(p, turing));
  EXPECT_EQ(gpu_backward_base("ForwardConfig{.target=cuda_sm75}", p, hopper),
            select_backward(p, hopper));
  ForwardConfig large = forward;
  large.block_k = 128;  // more than Turing has, wherever it runs
  EXPECT_NE(validate_config(large, p, hopper).reason.find("shared memory"), std::string::npos);
  const ForwardConfig portable = select_forward(p, gpu_limits(80));
  EXPECT_NE(validate_config(portable, p, turing).reason.find("from compute capability 8.0"),
            std::string::npos);
  BackwardConfig ordered = select_backward(p, turing);
  ordered.dq = DqAccumulation::serialized;
  EXPECT_NE(validate_config(ordered, p, turing).reason.find("dq=serialized takes cuda_sm80"),
            std::string::npos);
}

TEST(GpuLegality, FieldsOfAGpuAreUnknownToAProcessorsConfiguration) {
  EXPECT_THROW(parse_config("target=cpu_avx2,warps=4", ForwardConfig{}), InvalidArgument);
  EXPECT_EQ(parse_config("target=cuda_sm80,warps=8", ForwardConfig{}).warps, 8);
  EXPECT_EQ(to_text(ForwardConfig{}).find("warps"), std::string::npos);
}

TEST(GpuLegality, EveryForwardRuleRefusesWithItsReason) {
  const Limits limits = gpu_limits(80);
  const Problem p = problem_of("fwd bf16 h1 s64 d128");
  const ForwardConfig good = select_forward(p, limits);
  ASSERT_TRUE(validate_config(good, p, limits));
  const auto refused = [&](auto change, const char* why) {
    ForwardConfig config = good;
    change(config);
    return validate_config(config, p, limits).reason.find(why) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& c) { c.element = DType::fp16; }, "element=fp16"));
  EXPECT_TRUE(refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128"));
  EXPECT_TRUE(refused([](auto& c) { c.value_dim = 256; }, "dv=128"));
  EXPECT_TRUE(refused([](auto& c) { c.warps = 0; }, "warps=0"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 1; }, "stages=1"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 96; }, "block_q=96"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 48; }, "block_k=48"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 128, c.ctas = 1; }, "registers"));
  EXPECT_TRUE(refused([](auto& c) { c.ctas = 3; }, "ctas=3"));
  const Limits small = gpu_limits(86);
  EXPECT_NE(validate_config(ForwardConfig{.target = Target::cuda_sm80,
                                          .element = DType::bf16,
                                          .head_dim = 128,
                                          .value_dim = 128,
                                          .block_q = 128,
                                          .block_k = 128,
                                          .ctas = 1},
                            p, small)
                .reason.find("shared memory"),
            std::string::npos);
}

TEST(GpuLegality, EveryBackwardRuleRefusesWithItsReason) {
  const Limits limits = portable_limits();
  const Problem p = problem_of("bwd bf16 h1 s64 d128");
  const BackwardConfig good = select_backward(p, limits);
  ASSERT_TRUE(validate_config(good, p, limits));
  const auto refused = [&](auto change, const char* why) {
    BackwardConfig config = good;
    change(config);
    return validate_config(config, p, limits).reason.find(why) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& c) { c.warps = 1; }, "sharing=2"));
  EXPECT_TRUE(refused([](auto& c) { c.sharing = 3; }, "sharing=3"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 16; }, "multiples of 32"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 48; }, "block_k=48"));
  EXPECT_TRUE(refused([](auto& c) { c.dq_warps = 0; }, "warps=0"));
  EXPECT_TRUE(refused([](auto& c) { c.dq_block_q = 32; }, "dq_block_q=32"));
  EXPECT_TRUE(refused([](auto& c) { c.dq_block_k = 8; }, "dq_block_k=8"));
}

TEST(GpuLegality, SumsInOrderAreTheDefaultWhereThereAreBlocksEnough) {
  const Limits limits = portable_limits();
  const auto chosen = [&](const char* line) {
    return select_backward(problem_of(line), limits).dq;
  };
  EXPECT_EQ(chosen("bwd bf16 b4 h32 s4096 d64"), DqAccumulation::serialized);
  EXPECT_EQ(chosen("bwd fp16 b16 h16 s1024 d128"), DqAccumulation::serialized);
  EXPECT_EQ(chosen("bwd bf16 b4 h8 s4096 d256"), DqAccumulation::serialized);
  EXPECT_EQ(chosen("bwd bf16 b1 h4 s4096 d64"), DqAccumulation::separate);
  EXPECT_EQ(chosen("bwd fp32 b4 h32 s4096 d64"), DqAccumulation::separate);
  EXPECT_EQ(chosen("bwd bf16 b4 h32 s4096 d80"), DqAccumulation::separate);
}

TEST(GpuLegality, EveryRuleOfSumsInOrderRefusesWithItsReason) {
  const auto reason = [](const char* line, const char* config) {
    const Limits limits = portable_limits();
    const Problem p = problem_of(line);
    return validate_config(parse_config(config, select_backward(p, limits)), p, limits).reason;
  };
  const char* line = "bwd bf16 h1 s64 d64";
  const std::string good = "dq=serialized,block_k=128,block_q=32,warps=4,sharing=1,ctas=2";
  EXPECT_EQ(reason(line, (good + ",dq_block_q=128").c_str()), "");
  EXPECT_NE(reason("bwd fp32 h1 s64 d64", "dq=serialized").find("fp16 and bf16"),
            std::string::npos);
  EXPECT_NE(reason(line, "dq=atomic").find("is of cuda_sm90"), std::string::npos);
  EXPECT_NE(reason(line, (good + ",dq_block_q=48").c_str()).find("rows of a dq semaphore"),
            std::string::npos);
  EXPECT_NE(
      reason("bwd bf16 h1 s64 d16", "dq=serialized,block_k=128,block_q=32").find("equal parts"),
      std::string::npos);
  EXPECT_NE(reason("bwd bf16 h1 s64 d128", "dq=serialized,block_k=64,block_q=64,warps=4,ctas=2")
                .find("registers"),
            std::string::npos);
}

TEST(GpuLegality, ProblemsThatTheKernelsCannotRunAreRefusedWithTheReason) {
  const Limits limits = gpu_limits(90);
  const auto reason = [&](const char* line) {
    const Problem p = problem_of(line);
    return validate_config(select_forward(p, limits), p, limits).reason;
  };
  EXPECT_NE(reason("fwd e4m3 h1 d64 lens(64,64) page(16)").find("e4m3"), std::string::npos);
  EXPECT_EQ(reason("fwd tf32 h1 s64 d64"), "");
  EXPECT_NE(reason("fwd bf16 h2 s64 d64 strides_k(8192,4096,68)").find("strides of k"),
            std::string::npos);
  EXPECT_NE(reason("fwd bf16 h1 s300000000 d64").find("lengths"), std::string::npos);
  EXPECT_NE(reason("fwd bf16 b1000000 h1000 s64 d64").find("thread blocks"), std::string::npos);
  EXPECT_EQ(reason("fwd fp32 h1 s64 d64"), "");
  EXPECT_EQ(reason("fwd bf16 h2 s64 d64 strides_k(16384,8192,72)"), "");
}

TEST(GpuForward, Fp32OfHeadDim64TakesTheTileThatWasMeasuredFastest) {
  const Problem p = parse_problem("fwd fp32 b16 h8 s512 d64");
  const ForwardConfig chosen = gpu_forward_base("target=cuda_sm80", p, gpu_limits(90));
  EXPECT_EQ(chosen.block_q, 128);
  EXPECT_EQ(chosen.warps, 4);
  EXPECT_EQ(chosen.ctas, 2);
  EXPECT_EQ(select_forward(p, gpu_limits(86)).warps, 8);  // where two do not fit
}

}  // namespace
}  // namespace dfa
