// What tuning tries and what is chosen for problems of many kinds: compiled without a spill, on
// every architecture (kernels_full/compile_test.cpp, which is in this program too, instantiates the
// suite).
#include "kernels_full/compile_test.h"

#include <algorithm>

#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "spec/config_text.h"

namespace dfa::cuda {
namespace {

TEST_P(CompileTest, EveryCandidateOfTheCommonHeadDimsCompilesWithoutSpills) {
  for (const int d : {64, 128}) {
    const Problem p{.dtype = half(), .sq = 64, .sk = 64, .d = d, .dv = d};
    for (const ForwardConfig& config : forward_candidates(p, limits_)) {
      if (config.target != Target::cuda_sm90) compile(forward_launches(p, config));  // see below
    }
    // The two kernels of a backward are tuned apart: every tile of each, once.
    std::set<std::string> keys, queries;
    for (const BackwardConfig& config : backward_candidates(p, limits_)) {
      const auto launches = backward_launches(p, config);
      if (config.dq_serialized()) continue;
      BackwardConfig of_keys = config, of_queries = config;
      of_keys.dq_block_q = of_keys.dq_block_k = of_keys.dq_warps = of_keys.dq_ctas = 1;
      of_queries.block_q = of_queries.block_k = of_queries.warps = of_queries.ctas = 1;
      of_queries.sharing = 1;
      if (keys.insert(to_text(of_keys)).second) compile({launches[1]});
      if (queries.insert(to_text(of_queries)).second) compile({launches[2]});
    }
  }
}

TEST_P(CompileTest, EveryCandidateOfSumsInOrderCompilesWithoutSpills) {
  for (const int d : kGpuHeadDims) {
    const Problem p{.dtype = DType::bf16, .sq = 64, .sk = 64, .d = d, .dv = d};
    for (const BackwardConfig& config : backward_candidates(p, limits_)) {
      if (config.target == Target::cuda_sm90) continue;  // all of them below
      if (config.dq_serialized()) compile(backward_launches(p, config));
    }
  }
}

// Of every width, and of one with all that a problem may ask for.
TEST_P(CompileTest, HeadsInSlicesOfEveryWidthCompileWithoutSpills) {
  if (sm75()) GTEST_SKIP() << "cuda_sm75 has d and dv up to 256";
  for (const DType type : {DType::bf16, DType::fp16, DType::tf32, DType::fp32}) {
    const std::string pass = std::string("fwdbwd ") + name_of(type);
    const std::string forward = std::string("fwd ") + name_of(type);
    for (const char* dims : {"d320", "d384", "d512", "d512 dv64", "d64 dv512", "d320 dv512"}) {
      compile_defaults(pass + " h1 s64 " + dims);
    }
    for (const char* dims : {"d320", "d512", "d64 dv512"}) {
      compile_defaults(pass + " causal h1 lens(64,64) softcap(3) alibi sink " + dims);
    }
    compile_defaults(pass + " causal h1 d512 lens(64,64) chunk(9)");
    compile_defaults(forward + " h1 s64 d576 dv512");
    compile_defaults(forward + " h1 d576 dv512 lens(64,64) page(16) softcap(3) alibi sink");
    compile_defaults(forward + " h1 s64 d512 bias(1,h)");
  }
}

// Hopper's own: every tile of equal head dims and of the pairs furthest apart.
TEST_P(CompileTest, EveryHopperForwardCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  const auto compile_all = [&](DType type, int d, int dv) {
    const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = dv};
    const auto candidates = forward_candidates(p, limits_);
    ASSERT_EQ(candidates.at(0).target, Target::cuda_sm90) << d << " " << dv;
    std::size_t tried = type == DType::bf16 ? candidates.size() : 2;  // fp16's differ in one line
    for (const ForwardConfig& config : candidates) {
      if (config.target != Target::cuda_sm90 || tried-- == 0) break;
      compile(forward_launches(p, config));
    }
  };
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (const int d : {64, 96, 128, 192, 256}) compile_all(type, d, d);
  }
  compile_all(DType::bf16, 192, 128);
  compile_all(DType::bf16, 64, 256);
  compile_all(DType::bf16, 256, 64);
}

// What is chosen for one query, for short and for long sequences: heads packed in rows, of any
// number, keys in shares, q in registers, pairs of blocks.
TEST_P(CompileTest, HopperForwardsThatAreChosenCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  std::set<std::string> chosen;
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const DType type : {DType::bf16, DType::fp16}) {
      for (const char* rest :
           {"b1 h8 sq1 sk16384", "b1 h8 sq1024 sk16384", "b8 hq16 hk8 s4096", "causal b1 h8 s16384",
            "causal b32 hq2 hk1 sq8 sk4096", "causal b32 hq8 hk1 sq8 sk4096",
            "causal b32 hq16 hk1 sq8 sk4096", "causal hq7 hk1 sq8 sk4096"}) {
        const Problem p = with_pack_gqa(parse_problem(std::string("fwd ") + name_of(type) + " " +
                                                      rest + " d" + std::to_string(d)));
        const ForwardConfig config = select_forward(p, limits_);
        ASSERT_EQ(config.target, Target::cuda_sm90) << rest << " " << d;
        chosen.insert(to_text(config));
        compile(forward_launches(p, config));
      }
    }
  }
  EXPECT_GE(chosen.size(), 40u);
}

TEST_P(CompileTest, EveryHopperForwardOfPagesCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* type : {"bf16", "fp16"}) {
    for (const char* dims : {"d64", "d96", "d128", "d192", "d256", "d192 dv128", "d64 dv256"}) {
      for (const char* logits : {"", " sink", " softcap(3)", " alibi", " softcap(3) alibi sink"}) {
        const Problem p = parse_problem(std::string("fwd ") + type + " causal h1 " + dims +
                                        " lens(640,640) page(16)" + logits);
        const auto candidates = sm90_candidates(p, limits_);
        ASSERT_FALSE(candidates.empty()) << to_line(p);
        for (const ForwardConfig& config : candidates) compile(forward_launches(p, config));
      }
    }
  }
}

TEST_P(CompileTest, EveryHopperForwardOfListsOfBlocksCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  std::set<std::string> chosen;
  for (const char* type : {"bf16", "fp16"}) {
    for (const char* dims : {"d64", "d96", "d128", "d192", "d256", "d192 dv128", "d64 dv256"}) {
      for (const char* logits : {"", " sink", " softcap(3)", " alibi", " softcap(3) alibi sink"}) {
        for (const char* sides : {"64x64", "128x128", "192x192", "256x256"}) {
          const Problem p = parse_problem(std::string("fwd ") + type + " causal h1 s640 " + dims +
                                          logits + " blocks(" + sides + ",partial)");
          const auto candidates = sm90_candidates(p, limits_);
          ASSERT_FALSE(candidates.empty()) << to_line(p);
          for (const ForwardConfig& config : candidates) {
            if (chosen.insert(to_text(config)).second) compile(forward_launches(p, config));
          }
        }
      }
    }
  }
}

TEST_P(CompileTest, EveryHopperForwardInFp32CompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128}) {
    for (const int dv : {64, 128}) {
      const Problem p{.dtype = DType::fp32, .sq = 64, .sk = 64, .d = d, .dv = dv};
      const auto candidates = fp32x3_candidates(p, limits_);
      ASSERT_FALSE(candidates.empty()) << d << " " << dv;
      for (const ForwardConfig& config : candidates) compile(forward_launches(p, config));
    }
  }
}

TEST_P(CompileTest, EveryHopperForwardInE4m3CompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const int dv : {64, 128, 192, 256}) {
      for (const int rows : {0, 64, 384}) {
        Problem p{.dtype = DType::e4m3, .sq = 640, .sk = 640, .d = d, .dv = dv};
        p.descale_rows = rows;
        const auto candidates = sm90_candidates(p, limits_);
        ASSERT_FALSE(candidates.empty()) << d << " " << dv << " " << rows;
        for (const ForwardConfig& config : candidates) compile(forward_launches(p, config));
      }
    }
  }
}

TEST_P(CompileTest, EveryHopperBackwardInFp32CompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128}) {
    for (const int dv : {64, 128}) {
      const Problem p{.dtype = DType::fp32, .sq = 64, .sk = 64, .d = d, .dv = dv};
      const auto candidates = fp32x3_backward_candidates(p, limits_);
      ASSERT_FALSE(candidates.empty()) << d << " " << dv;
      for (const BackwardConfig& config : candidates) compile(backward_launches(p, config));
    }
  }
}

// What is chosen, and what tuning tries, for short and long sequences with and without masks, with
// the same bits in every run and with any.
TEST_P(CompileTest, EveryHopperBackwardCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  std::set<std::string> chosen;
  for (const char* dims : {"d64", "d96", "d128", "d64 dv128", "d96 dv64", "d128 dv64", "d192",
                           "d256", "d192 dv128", "d96 dv192", "d256 dv64"}) {
    for (const char* rest :
         {"b1 h2 s64", "b8 h16 s1024", "b8 h16 s4096", "b8 h16 s16384", "causal b8 h16 s384",
          "causal b8 hq16 hk4 s1024", "causal b8 h16 s4096", "causal b1 h1 s4096",
          "causal b8 h16 s16384", "window(255,0) b8 h16 s4096", "window(4095,0) b8 h16 s16384"}) {
      for (const char* bits : {"", " deterministic"}) {
        const Problem p = parse_problem(std::string("bwd bf16 ") + rest + " " + dims + bits);
        for (const BackwardConfig& config : sm90_backward_candidates(p, limits_)) {
          chosen.insert(to_text(config));
          compile(backward_launches(p, config));
        }
      }
    }
  }
  EXPECT_GE(chosen.size(), 60u);
  for (const char* line : {"bwd fp16 b8 h16 s1024 d64", "bwd fp16 causal b8 h16 s4096 d128",
                           "bwd fp16 b8 h16 s4096 d256", "bwd fp16 causal b8 h16 s1024 d192"}) {
    const Problem p = parse_problem(line);
    compile(backward_launches(p, select_backward(p, limits_)));
  }
}

}  // namespace
}  // namespace dfa::cuda
