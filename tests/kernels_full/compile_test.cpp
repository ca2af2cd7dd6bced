#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cuda/request.h"
#include "kernels_full/architectures.h"
#include "problem_lines.h"
#include "spec/config_text.h"
#include "spec/legality.h"
#include "spec/packed_heads.h"
#include "spec/sm90_legality.h"
#include "spec/sm90_split_legality.h"

namespace dfa::cuda {
namespace {

class CompileTest : public OnArchitectures {
 protected:
  void SetUp() override {
    DFA_NEEDS_NVRTC(nvrtc_);
    limits_ = gpu_limits(GetParam().number);
  }

  void compile(const std::vector<KernelLaunch>& launches) {
    for (const KernelLaunch& launch : launches) {
      if (!seen_.insert(launch.entry).second) continue;
      compile_without_stack(nvrtc_, request_of(launch, GetParam().name));
    }
  }

  // What Defaults… compiles is not compiled again: every test is a process of its own.
  void leave_defaults_out() {
    for (const KernelLaunch& launch : defaults()) seen_.insert(launch.entry);
  }

  std::vector<KernelLaunch> defaults() const {
    std::vector<KernelLaunch> all;
    for (const DType type : {DType::bf16, DType::fp16, DType::tf32, DType::fp32}) {
      if (sm75() && (type == DType::bf16 || type == DType::tf32)) continue;
      for (const int d : kGpuHeadDims) add_defaults(all, type, d, d);
    }
    add_defaults(all, half(), 192, 128);
    add_defaults(all, half(), 64, 128);
    return all;
  }

  void add_defaults(std::vector<KernelLaunch>& all, DType type, int d, int dv) const {
    const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = dv};
    const auto add = [&](const std::vector<KernelLaunch>& launches) {
      all.insert(all.end(), launches.begin(), launches.end());
    };
    add(forward_launches(p, default_gpu_forward(p, limits_)));
    if (sm75() && type == DType::fp32 && d > 192) return;  // k and v alone would fill it
    add(backward_launches(p, default_gpu_backward(p, limits_)));
  }

  bool sm75() const { return limits_.highest == Target::cuda_sm75; }
  DType half() const { return sm75() ? DType::fp16 : DType::bf16; }

  Nvrtc nvrtc_;
  Limits limits_;
  std::set<std::string> seen_;
};

TEST_P(CompileTest, DefaultsOfEveryHeadDimAndElementCompileWithoutSpills) { compile(defaults()); }

TEST_P(CompileTest, EveryCandidateOfTheCommonHeadDimsCompilesWithoutSpills) {
  leave_defaults_out();
  for (const int d : {64, 128}) {
    const Problem p{.dtype = half(), .sq = 64, .sk = 64, .d = d, .dv = d};
    for (const ForwardConfig& config : forward_candidates(p, limits_)) {
      if (config.target != Target::cuda_sm90) compile(forward_launches(p, config));  // see below
    }
    // The two kernels of a backward are tuned apart: every tile of each, once.
    std::set<std::string> keys, queries;
    for (const BackwardConfig& config : backward_candidates(p, limits_)) {
      const auto launches = backward_launches(p, config);
      if (config.dq == DqSum::ordered) continue;
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
  leave_defaults_out();
  for (const int d : kGpuHeadDims) {
    const Problem p{.dtype = DType::bf16, .sq = 64, .sk = 64, .d = d, .dv = d};
    for (const BackwardConfig& config : backward_candidates(p, limits_)) {
      if (config.target == Target::cuda_sm90) continue;  // all of them below
      if (config.dq == DqSum::ordered) compile(backward_launches(p, config));
    }
  }
}

// Forced on a later machine they are compiled for that.
TEST_P(CompileTest, KernelsForSm75CompileEverywhere) {
  leave_defaults_out();
  for (const DType type : {DType::fp16, DType::fp32}) {
    for (const int d : {64, 128}) {
      const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = d};
      compile(forward_launches(p, gpu_forward_base("target=cuda_sm75", p, limits_)));
      compile(backward_launches(p, gpu_backward_base("target=cuda_sm75", p, limits_)));
    }
  }
}

// Hopper's own: every tile of equal head dims and of the pairs furthest apart.
TEST_P(CompileTest, EveryHopperForwardCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  leave_defaults_out();
  const auto compile_all = [&](DType type, int d, int dv) {
    const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = dv};
    const auto candidates = forward_candidates(p, limits_);
    ASSERT_EQ(candidates.at(0).target, Target::cuda_sm90) << d << " " << dv;
    for (const ForwardConfig& config : candidates) {
      if (config.target == Target::cuda_sm90) compile(forward_launches(p, config));
    }
    ForwardConfig follows = candidates[0];  // by name in bf16; fp16 without what is held
    follows.fixed_reference = false;
    follows.held_columns = 0;
    compile(forward_launches(p, follows));
  };
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (const int d : {64, 96, 128, 192, 256}) compile_all(type, d, d);
  }
  compile_all(DType::bf16, 192, 128);
  compile_all(DType::bf16, 64, 256);
  compile_all(DType::bf16, 256, 64);
}

// Also where no problem takes them unasked.
TEST_P(CompileTest, HopperForwardsInPairsAndByHalvesCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const DType type : {DType::bf16, DType::fp16}) {
      const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = d};
      const auto candidates = sm90_candidates(p, limits_);
      ASSERT_FALSE(candidates.empty()) << d;
      ForwardConfig config = candidates[0];
      config.cluster = 2;
      ASSERT_TRUE(check(config, p, limits_));
      compile(forward_launches(p, config));
      if (d < 192 || config.q_stages != 1) continue;
      config.block_k = 64;
      config.own_output = true;
      ASSERT_TRUE(check(config, p, limits_));
      compile(forward_launches(p, config));
    }
  }
}

TEST_P(CompileTest, HopperForwardsOfPackedHeadsCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const int heads : {2, 8, 16}) {
      Problem p{.dtype = heads == 8 ? DType::fp16 : DType::bf16, .b = 32, .hq = heads, .sq = 8};
      p.sk = 4096;
      p.d = p.dv = d;
      p.mask = kCausal;
      const ForwardConfig config = default_gpu_forward(p, limits_);
      ASSERT_EQ(config.packed_heads, heads);
      compile(forward_launches(p, config));
    }
    for (const DType type : {DType::bf16, DType::fp16}) {
      Problem odd{.dtype = type, .hq = 7, .sq = 8, .sk = 4096, .d = d, .dv = d};
      odd.mask = kCausal;
      const ForwardConfig config = default_gpu_forward(odd, limits_);
      ASSERT_EQ(config.packed_heads, 7);
      compile(forward_launches(odd, config));
    }
  }
}

TEST_P(CompileTest, HopperForwardsWithSharesOfKeysCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const DType type : {DType::bf16, DType::fp16}) {
      for (const int sq : {1, 1024, 16384}) {  // their tiles differ, the last ones are of pairs
        const Problem p{.dtype = type, .hq = 8, .hk = 8, .sq = sq, .sk = 16384, .d = d, .dv = d};
        ForwardConfig config = default_gpu_forward(p, limits_);
        config.key_shares = 132 / config.cluster;
        if (config.block_q > kMostSharedQueries) {
          EXPECT_FALSE(check(config, p, limits_));  // three warpgroups and four spill
          continue;
        }
        ASSERT_TRUE(check(config, p, limits_)) << d;
        compile(forward_launches(p, config));
      }
    }
  }
}

// As many columns of q in registers as the rule lets in.
TEST_P(CompileTest, HopperForwardsThatHoldQCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  int held = 0;
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const DType type : {DType::bf16, DType::fp16}) {
      const Problem p{.dtype = type, .sq = 4096, .sk = 4096, .d = d, .dv = d};
      auto candidates = sm90_candidates(p, limits_);
      candidates.resize(std::min<std::size_t>(candidates.size(), type == DType::bf16 ? 3 : 1));
      for (ForwardConfig config : candidates) {
        for (config.held_columns = d; config.held_columns > 0; config.held_columns -= 16) {
          if (check(config, p, limits_)) break;
        }
        if (config.held_columns == 0) continue;
        compile(forward_launches(p, config));
        ++held;
      }
    }
  }
  EXPECT_GE(held, 8);
}

// Products that a branch may leave out are not serialised.
TEST_P(CompileTest, HopperForwardsThatSkipCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const DType type : {DType::bf16, DType::fp16}) {
      const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = d};
      auto candidates = sm90_candidates(p, limits_);
      ASSERT_FALSE(candidates.empty()) << d;
      const bool tuned = type == DType::bf16 && (d == 64 || d == 128);
      candidates.resize(std::min<std::size_t>(candidates.size(), tuned ? 3 : 1));
      for (ForwardConfig& config : candidates) {
        config.skip = true;
        ASSERT_TRUE(check(config, p, limits_));
        compile(forward_launches(p, config));
      }
    }
  }
}

TEST_P(CompileTest, HopperForwardsThatTakeTheirItemsCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  std::set<std::string> compiled;
  for (const std::string& line : problem_lines("hopper_forward.txt")) {
    const Problem p = with_packed_heads(parse_problem(line));
    ForwardConfig config = default_gpu_forward(p, limits_);
    config.dynamic = true;
    config.key_shares = 0;
    if (config.target != Target::cuda_sm90 || is_split(config)) continue;
    ASSERT_TRUE(check(config, p, limits_)) << line;
    if (compiled.insert(to_text(config)).second) compile(forward_launches(p, config));
  }
  EXPECT_GE(compiled.size(), 8u);
}

TEST_P(CompileTest, EveryHopperForwardInFp32CompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128}) {
    for (const int dv : {64, 128}) {
      const Problem p{.dtype = DType::fp32, .sq = 64, .sk = 64, .d = d, .dv = dv};
      const auto candidates = split_candidates(p, limits_);
      ASSERT_FALSE(candidates.empty()) << d << " " << dv;
      for (const ForwardConfig& config : candidates) compile(forward_launches(p, config));
    }
  }
}

TEST_P(CompileTest, EveryHopperBackwardInFp32CompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const int d : {64, 96, 128}) {
    for (const int dv : {64, 128}) {
      const Problem p{.dtype = DType::fp32, .sq = 64, .sk = 64, .d = d, .dv = dv};
      const auto candidates = split_backward_candidates(p, limits_);
      ASSERT_FALSE(candidates.empty()) << d << " " << dv;
      for (const BackwardConfig& config : candidates) compile(backward_launches(p, config));
    }
  }
}

// Likewise, and sums as they come.
TEST_P(CompileTest, EveryHopperBackwardCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  leave_defaults_out();
  struct Dims {
    int d, dv;
  };
  for (const auto [d, dv] :
       {Dims{64, 64}, Dims{96, 96}, Dims{128, 128}, Dims{64, 128}, Dims{96, 64}, Dims{128, 64}}) {
    Problem p{.dtype = DType::bf16, .sq = 64, .sk = 64, .d = d, .dv = dv};
    const auto candidates = sm90_backward_candidates(p, limits_);
    ASSERT_FALSE(candidates.empty()) << d << " " << dv;
    for (BackwardConfig config : candidates) {
      compile(backward_launches(p, config));
      config.rounds_dq = true;
      if (check(config, p, limits_)) compile(backward_launches(p, config));
      config.persistent = true;
      if (check(config, p, limits_)) compile(backward_launches(p, config));
      BackwardConfig by_tile = config;
      by_tile.persistent = by_tile.rounds_dq = false;
      by_tile.heads_by_tile = true;
      if (check(by_tile, p, limits_)) compile(backward_launches(p, by_tile));
      config.rounds_dq = false;
      if (check(config, p, limits_)) compile(backward_launches(p, config));
      config.keys_in_registers = !config.keys_in_registers;
      if (check(config, p, limits_)) compile(backward_launches(p, config));
    }
    for (const DType type : {DType::bf16, DType::fp16}) {
      for (const int keys : {512, 1024, 4096, 16384}) {  // defaults of these lengths
        for (const Mask& mask : {Mask{}, kCausal}) {
          Problem square{.dtype = type, .mask = mask, .sq = keys, .sk = keys, .d = d, .dv = dv};
          compile(backward_launches(square, sm90_backward_candidates(square, limits_)[0]));
          square.b = 128;  // not in parts
          BackwardConfig config = sm90_backward_candidates(square, limits_)[0];
          compile(backward_launches(square, config));
          BackwardConfig by_tile = config;
          by_tile.heads_by_tile = true;
          if (check(by_tile, square, limits_)) compile(backward_launches(square, by_tile));
          BackwardConfig helped = config;  // by name where it is not that
          helped.dq = DqSum::unordered;
          helped.early_turns = helped.bulk_dq = false;
          helped.zeroes_dq = helped.rounds_dq = helped.persistent = true;
          if (check(helped, square, limits_)) compile(backward_launches(square, helped));
          BackwardConfig parted = config;
          parted.parts_last = !parted.parts_last;
          if (check(parted, square, limits_)) compile(backward_launches(square, parted));
          config.nested_keys = false;
          if (config.skips_hidden) compile(backward_launches(square, config));
        }
      }
    }
    BackwardConfig unordered = candidates[0];
    unordered.dq = DqSum::unordered;
    if (check(unordered, p, limits_)) compile(backward_launches(p, unordered));
    BackwardConfig staying = unordered;  // and skipping
    staying.persistent = staying.skips_hidden = true;
    staying.cluster = 2;
    staying.early_turns = false;
    if (check(staying, p, limits_)) compile(backward_launches(p, staying));
    for (const bool stays : {false, true}) {
      BackwardConfig bulk = unordered;
      bulk.cluster = 2;
      bulk.early_turns = false;
      bulk.bulk_dq = true;
      bulk.persistent = stays;
      if (check(bulk, p, limits_)) compile(backward_launches(p, bulk));
    }
    BackwardConfig early = candidates[0];
    early.early_turns = true;
    if (d == dv && d != 96) compile(backward_launches(p, early));
    p.dtype = DType::fp16;
    compile(backward_launches(p, sm90_backward_candidates(p, limits_)[0]));
  }
  const Problem p{.dtype = DType::fp16, .sq = 64, .sk = 4096, .d = 64, .dv = 64};
  const std::string named = "BackwardConfig{target=cuda_sm90,stages=3,dq_group=true}";
  BackwardConfig dq_group = legal_config(named, gpu_backward_base(named, p, limits_), p, limits_);
  compile(backward_launches(p, dq_group));
  BackwardConfig pairs = dq_group;
  pairs.stages = 2;
  pairs.cluster = 2;
  ASSERT_TRUE(check(pairs, p, limits_));
  compile(backward_launches(p, pairs));
  dq_group.dq = DqSum::unordered;
  dq_group.stages = 2;
  compile(backward_launches(p, dq_group));
}

TEST_P(CompileTest, EveryHopperBackwardOfWideHeadsCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  struct Dims {
    int d, dv;
  };
  for (const auto [d, dv] : {Dims{192, 192}, Dims{256, 256}, Dims{192, 128}, Dims{96, 192},
                             Dims{128, 256}, Dims{256, 64}, Dims{192, 256}, Dims{256, 192}}) {
    Problem p{.dtype = DType::bf16, .sq = 4096, .sk = 4096, .d = d, .dv = dv};  // pairs first
    const auto candidates = sm90_wide_candidates(p, limits_);
    ASSERT_FALSE(candidates.empty()) << d << " " << dv;
    EXPECT_EQ(candidates[0].cluster, d == 256 && dv == 192 ? 1 : 2);  // where they fit
    const auto compile_unordered = [&](BackwardConfig config) {
      compile(backward_launches(p, config));
      config.zeroes_dq = true;  // a default under a causal mask
      compile(backward_launches(p, config));
    };
    for (const BackwardConfig& config : candidates) {
      if (config.dq == DqSum::unordered) {
        compile_unordered(config);
      } else if (d == dv) {
        compile(backward_launches(p, config));
      }
      BackwardConfig by_tile = config;
      by_tile.heads_by_tile = true;
      if (check(by_tile, p, limits_)) compile(backward_launches(p, by_tile));
    }
    BackwardConfig staying = candidates[0];
    staying.persistent = true;
    staying.keys_in_registers = d <= 192 && dv <= 192;
    if (check(staying, p, limits_)) compile_unordered(staying);
    if (d != dv) continue;
    p.dtype = DType::fp16;
    for (const BackwardConfig& config : sm90_wide_candidates(p, limits_)) {
      if (config.dq == DqSum::unordered) compile_unordered(config);
    }
    staying.element = p.dtype;
    compile(backward_launches(p, staying));
  }
}

DFA_ON_EVERY_ARCHITECTURE(CompileTest);

}  // namespace
}  // namespace dfa::cuda
