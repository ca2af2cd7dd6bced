#include "spec/sm90_legality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "spec/config_text.h"
#include "spec/gpu_legality.h"
#include "spec/sm90_split_legality.h"

namespace dfa {
namespace {

const Limits kHopper = gpu_limits(90);

TEST(Sm90Legality, HopperAloneRunsItAndEveryWideHalfPrecisionProblemTakesIt) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (int d = 8; d <= 256; d += 8) {
      for (const int dv : {8, d, 256}) {
        const Problem p{.dtype = type, .sq = 100, .sk = 100, .d = d, .dv = dv};
        const bool wide = std::max(d, dv) > 32;
        EXPECT_EQ(default_gpu_forward(p, kHopper).target == Target::cuda_sm90, wide) << d << dv;
        EXPECT_EQ(bool(sm90_fits(p, kHopper)), wide);
        for (const int other : {80, 89, 100, 120}) {
          EXPECT_EQ(default_gpu_forward(p, gpu_limits(other)).target, Target::cuda_sm80);
        }
      }
    }
  }
}

TEST(Sm90Legality, TextNamesTheOtherKernelsAndTheirDefaultsAreTheBase) {
  const Problem p = parse_problem("fwdbwd bf16 causal h4 s512 d128");
  const auto forced = [&](const char* text) {
    return legal_config(text, gpu_forward_base(text, p, kHopper), p, kHopper);
  };
  EXPECT_EQ(forced("").target, Target::cuda_sm90);
  Limits portable = kHopper;
  portable.highest = Target::cuda_sm80;
  EXPECT_EQ(forced(".target=cuda_sm80"), default_gpu_forward(p, portable));
  EXPECT_EQ(forced("ForwardConfig{.target=Target::cuda_sm80,.block_k=32}").block_k, 32);
  EXPECT_EQ(forced("BackwardConfig{.target=cuda_sm80}").target, Target::cuda_sm90);
  EXPECT_FALSE(forced("pingpong=false").pingpong);
  EXPECT_THROW(forced("pingpong=1"), InvalidArgument);
  EXPECT_THROW(forced("target=cuda_sm80,pingpong=true"), InvalidArgument);
}

TEST(Sm90Legality, ProblemsTakeTheTileThatWasMeasuredOrPredictedToTakeTheLeastJoules) {
  const auto tile = [](const char* line) {
    const ForwardConfig c = default_gpu_forward(parse_problem(line), kHopper);
    return std::to_string(c.block_q) + "x" + std::to_string(c.block_k);
  };
  EXPECT_EQ(tile("fwd bf16 causal b32 h32 s512 d64"), "256x64");
  EXPECT_EQ(tile("fwd bf16 b4 h32 s4096 d64"), "256x64");
  EXPECT_EQ(tile("fwd bf16 b1 h32 s512 d64"), "128x128");  // 64 tiles of 256 leave half idle
  EXPECT_EQ(tile("fwd bf16 b32 h21 s512 d96"), "128x128");
  EXPECT_EQ(tile("fwd bf16 b4 h21 s4096 d96"), "192x64");
  EXPECT_EQ(tile("fwd bf16 causal b32 h21 s512 d96"), "128x128");
  EXPECT_EQ(tile("fwd bf16 causal b16 h21 s1024 d96"), "128x128");
  EXPECT_EQ(tile("fwd bf16 causal b4 h21 s4096 d96"), "192x64");
  EXPECT_EQ(tile("fwd bf16 b32 h16 s512 d128"), "128x128");
  EXPECT_EQ(tile("fwd bf16 causal b32 h16 s512 d128"), "128x64");
  EXPECT_EQ(tile("fwd bf16 b16 h16 s1024 d128"), "128x128");
  EXPECT_EQ(tile("fwd bf16 causal b16 h16 s1024 d128"), "128x64");
  EXPECT_EQ(tile("fwd bf16 causal b8 h16 s2048 d128"), "128x64");
  EXPECT_EQ(tile("fwd bf16 causal b4 h16 s4096 d128"), "128x64");
  EXPECT_EQ(tile("fwd bf16 b8 h16 s2048 d128"), "128x128");
  EXPECT_EQ(tile("fwd bf16 b4 h16 s4096 d128"), "192x80");
  EXPECT_EQ(tile("fwd bf16 causal b1 h16 s16384 d128"), "192x80");
  EXPECT_EQ(tile("fwd bf16 causal b32 h8 s512 d256"), "128x64");
  // One query sees all keys under a causal mask too.
  EXPECT_EQ(tile("fwd bf16 causal b64 h16 sq1 sk4096 d128"),
            tile("fwd bf16 b64 h16 sq1 sk4096 d128"));
}

BackwardConfig hopper_backward(const Problem& p) {
  return gpu_backward_base("BackwardConfig{target=cuda_sm90}", p, kHopper);
}

// Of benchmarks/turns: problem lines, below each its tiles as changes to the planned one.
template <typename Visitor>
void for_each_turn(const char* name, Visitor&& visit) {
  std::ifstream file(std::string(DFA_SOURCE_DIR "/benchmarks/") + name);
  std::string line;
  Problem problem;
  int tiles = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      problem = parse_problem(line);
      continue;
    }
    visit(problem, line.substr(line.find(':') + 2));
    ++tiles;
  }
  EXPECT_GT(tiles, 0) << name;
}

TEST(Sm90Legality, TilesThatAreMeasuredInTurnsAreLegalAndNotThePlannedOne) {
  for_each_turn("turns_forward.txt", [](const Problem& p, const std::string& changes) {
    const std::string text = "ForwardConfig{" + changes + "}";
    EXPECT_NE(legal_config(text, gpu_forward_base(text, p, kHopper), p, kHopper),
              default_gpu_forward(p, kHopper))
        << changes;
  });
  for_each_turn("turns_backward.txt", [](const Problem& p, const std::string& changes) {
    const BackwardConfig planned = hopper_backward(p);
    EXPECT_NE(legal_config("BackwardConfig{" + changes + "}", planned, p, kHopper), planned)
        << changes;
  });
}

TEST(Sm90Legality, TurnsAreOfLongItemsWithoutAMask) {
  const auto turns = [](const char* line) {
    return default_gpu_forward(parse_problem(line), kHopper).pingpong;
  };
  EXPECT_FALSE(turns("fwd bf16 b32 h16 s512 d128"));
  EXPECT_TRUE(turns("fwd bf16 b16 h16 s1024 d128"));
  EXPECT_FALSE(turns("fwd bf16 causal b16 h16 s1024 d128"));
}

TEST(Sm90Legality, PairsOfBlocksAreOfLongItemsAndWideOutputsLeaveByHalves) {
  const auto taken = [](const char* line) {
    return default_gpu_forward(parse_problem(line), kHopper);
  };
  for (const char* line :
       {"fwd bf16 b1 h16 s16384 d128", "fwd bf16 causal b1 h16 s16384 d128",
        "fwd bf16 b4 h16 s4096 d128", "fwd bf16 b4 h8 s4096 d256", "fwd bf16 b1 h8 s16384 d256",
        "fwd bf16 causal b4 h8 s4096 d256", "fwd bf16 causal b2 h8 s8192 d256"}) {
    EXPECT_EQ(taken(line).cluster, 2) << line;
  }
  for (const char* line : {"fwd bf16 causal b4 h16 s4096 d128", "fwd bf16 b16 h16 s1024 d128",
                           "fwd bf16 b32 h16 s512 d128", "fwd bf16 b32 h8 s512 d256",
                           "fwd bf16 b16 h8 s1024 d256", "fwd bf16 b4 h21 s4096 d96",
                           "fwd fp16 b1 h16 s16384 d128", "fwd bf16 b1 h16 sq64 sk16384 d128"}) {
    EXPECT_EQ(taken(line).cluster, 1) << line;
  }
  EXPECT_TRUE(taken("fwd bf16 causal b32 h8 s512 d256").own_output);
  EXPECT_TRUE(taken("fwd bf16 b1 h8 s16384 d256").own_output);
  EXPECT_FALSE(taken("fwd bf16 b1 h16 s16384 d128").own_output);
}

TEST(Sm90Legality, TextNamesPairsAndHalvesWhereTheyAreTakenAlone) {
  const auto text = [](const char* line) {
    return to_text(default_gpu_forward(parse_problem(line), kHopper));
  };
  EXPECT_EQ(text("fwd bf16 b16 h16 s1024 d128").find("cluster"), std::string::npos);
  EXPECT_EQ(text("fwd bf16 b16 h16 s1024 d128").find("own_output"), std::string::npos);
  const std::string both = text("fwd bf16 b1 h8 s16384 d256");
  EXPECT_NE(both.find(".cluster=2,.own_output=true"), std::string::npos) << both;
  EXPECT_EQ(to_text(parse_config(both, ForwardConfig{})), both);
}

TEST(Sm90Legality, ColumnsOfQAreHeldByTilesOf64KeysOrWhereTheyAreNamedAndFit) {
  const auto held = [](const char* line) {
    return default_gpu_forward(parse_problem(line), kHopper).held_columns;
  };
  EXPECT_EQ(held("fwd bf16 b4 h32 s4096 d64"), 0);
  EXPECT_EQ(held("fwd bf16 b4 h21 s4096 d96"), 96);
  EXPECT_EQ(held("fwd bf16 causal b8 h16 s2048 d128"), 128);
  EXPECT_EQ(held("fwd bf16 b4 h16 s4096 d128"), 0);
  EXPECT_EQ(held("fwd bf16 b16 h8 s1024 d256"), 96);
  EXPECT_EQ(held("fwd fp16 b4 h21 s4096 d96"), 0);
  const Problem p = parse_problem("fwd bf16 b1 h8 s16384 d256");
  const ForwardConfig planned = default_gpu_forward(p, kHopper);
  EXPECT_EQ(planned.held_columns, 96);
  EXPECT_NE(to_text(planned).find(",.held_columns=96}"), std::string::npos);
  const auto forced = [&](const char* text) { return legal_config(text, planned, p, kHopper); };
  EXPECT_EQ(forced("held_columns=0").held_columns, 0);
  EXPECT_EQ(to_text(forced("held_columns=0")).find("held_columns"), std::string::npos);
  EXPECT_THROW(forced("held_columns=112"), InvalidArgument);  // registers
  EXPECT_THROW(forced("held_columns=-16"), InvalidArgument);
}

TEST(Sm90Legality, NoTileIsListedTwice) {
  for (const int d : {64, 96, 128, 192, 256}) {
    const auto candidates =
        sm90_candidates({.dtype = DType::bf16, .sq = 100, .sk = 100, .d = d, .dv = d}, kHopper);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      EXPECT_EQ(std::count(candidates.begin(), candidates.end(), candidates[i]), 1) << i;
    }
  }
}

TEST(Sm90Legality, OfBf16AloneTheReferenceStays) {
  const auto stays = [](const char* line) {
    return default_gpu_forward(parse_problem(line), kHopper).fixed_reference;
  };
  EXPECT_TRUE(stays("fwd bf16 h4 s512 d128"));
  EXPECT_FALSE(stays("fwd fp16 h4 s512 d128"));
}

TEST(Sm90Legality, TilesAreSkippedWhereItIsAskedForAlone) {
  const Problem p = parse_problem("fwd bf16 h4 s512 d128");
  const ForwardConfig usual = default_gpu_forward(p, kHopper);
  EXPECT_FALSE(usual.skip);
  EXPECT_EQ(to_text(usual).find("skip"), std::string::npos);  // as texts that are older have it
  const ForwardConfig skips = legal_config("skip=true", usual, p, kHopper);
  EXPECT_TRUE(skips.skip);
  EXPECT_NE(to_text(skips).find(",.skip=true}"), std::string::npos);
  EXPECT_EQ(parse_config(to_text(skips), ForwardConfig{}), skips);
  EXPECT_EQ(parse_config("skip=false", skips), usual);
  EXPECT_THROW(parse_config("target=cuda_sm80,skip=true", ForwardConfig{}), InvalidArgument);
}

TEST(Sm90Legality, EveryRuleRefusesWithItsReason) {
  const Problem p = parse_problem("fwd bf16 h2 s256 d128");
  const ForwardConfig good = default_gpu_forward(p, kHopper);
  ASSERT_TRUE(check(good, p, kHopper));
  const auto refused = [&](auto change, const char* why) {
    ForwardConfig config = good;
    change(config);
    return check(config, p, kHopper).reason.find(why) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& c) { c.element = DType::fp16; }, "element=fp16"));
  EXPECT_TRUE(refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128"));
  EXPECT_TRUE(refused([](auto& c) { c.value_dim = 256; }, "dv=128"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 96; }, "block_q=96"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 320; }, "block_q=320"));
  EXPECT_TRUE(refused([](auto& c) { c.cluster = 3; }, "cluster=3"));
  EXPECT_TRUE(refused([](auto& c) { c.own_output = true; }, "own_output=true"));
  EXPECT_TRUE(refused([](auto& c) { c.held_columns = 24; }, "held_columns=24"));
  EXPECT_TRUE(refused([](auto& c) { c.held_columns = 1024; }, "held_columns=1024"));
  EXPECT_TRUE(refused([](auto& c) { c.warps = 4; }, "warps=8"));
  EXPECT_TRUE(refused([](auto& c) { c.ctas = 2; }, "ctas=1"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 48; }, "block_k=48"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 1; }, "stages=1"));
  EXPECT_TRUE(refused([](auto& c) { c.q_stages = 3; }, "q_stages=3"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 4; }, "shared memory"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 256, c.stages = 2; }, "shared memory"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 192, c.warps = 12, c.q_stages = 1; }, "registers"));
  const Problem half = parse_problem("fwd fp16 h2 s64 d128");
  ForwardConfig fixed = default_gpu_forward(half, kHopper);
  fixed.fixed_reference = true;
  EXPECT_NE(check(fixed, half, kHopper).reason.find("fixed_reference=true is of bf16"),
            std::string::npos);
  EXPECT_NE(check(good, p, gpu_limits(100)).reason.find("9.0 only"), std::string::npos);
}

TEST(Sm90Legality, ProblemsItCannotRunTakeThePortableKernelsWithTheReason) {
  const auto reason = [&](const char* line) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(default_gpu_forward(p, kHopper).target, Target::cuda_sm80) << line;
    return sm90_fits(p, kHopper).reason;
  };
  EXPECT_NE(reason("fwd tf32 h1 s64 d64").find("fp32, not tf32"), std::string::npos);
  EXPECT_NE(reason("fwd fp32 h1 s64 d256").find("up to 128"), std::string::npos);
  EXPECT_NE(reason("fwd bf16 h1 s64 d32").find("pad heads"), std::string::npos);
  EXPECT_NE(reason("fwd bf16 h2 s64 d64 strides_k(8192,4096,68)").find("strides of k"),
            std::string::npos);
}

// The backward that a plan takes where its text names Hopper.
TEST(Sm90Legality, HalfPrecisionBackwardsMayTakeHopper) {
  for (const DType type : {DType::bf16, DType::fp16, DType::fp32}) {
    for (int d = 8; d <= 256; d += 8) {
      for (const int dv : {8, d, 128, 192}) {
        const Problem p{.dtype = type, .sq = 100, .sk = 100, .d = d, .dv = dv};
        const bool half = type != DType::fp32;
        const bool narrow = half && d > 32 && d <= 128 && dv <= 128;
        const bool wide = half && d > 64 && std::max(d, dv) > 128;
        const BackwardConfig named = hopper_backward(p);
        EXPECT_EQ(named.target == Target::cuda_sm90 && !is_split(named), narrow || wide)
            << d << " " << dv;
        EXPECT_EQ(sm90_backward_candidates(p, kHopper).empty(), !narrow) << d << " " << dv;
        EXPECT_EQ(sm90_wide_candidates(p, kHopper).empty(), !wide) << d << " " << dv;
        EXPECT_TRUE(sm90_backward_candidates(p, gpu_limits(100)).empty());
        EXPECT_TRUE(sm90_wide_candidates(p, gpu_limits(100)).empty());
      }
    }
  }
}

TEST(Sm90Legality, BackwardsItCannotRunTakeThePortableKernelsWithTheReason) {
  const auto reason = [&](const char* line) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(default_gpu_backward(p, kHopper).target, Target::cuda_sm80) << line;
    return sm90_backward_fits(p, kHopper).reason;
  };
  EXPECT_NE(reason("bwd tf32 h1 s64 d64").find("fp32, not tf32"), std::string::npos);
  EXPECT_NE(reason("bwd bf16 h1 s64 d32").find("pad d=32 to 64"), std::string::npos);
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv256").find("d from 65 on"), std::string::npos);
  EXPECT_NE(reason("bwd fp16 h2 s64 d256 strides_k(33280,16640,260)").find("strides of k"),
            std::string::npos);
  EXPECT_TRUE(sm90_backward_fits(parse_problem("bwd bf16 h1 s64 d256"), kHopper));
  EXPECT_TRUE(sm90_backward_fits(parse_problem("bwd bf16 h1 s64 d64"), kHopper));
}

TEST(Sm90Legality, HoppersBackwardOfWideHeadsIsTheDefault) {
  for (const char* line : {"bwd bf16 b4 h8 s4096 d256", "bwd fp16 b4 h8 s4096 d192 dv128"}) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(backward_candidates(p, kHopper).back().target, Target::cuda_sm80);
    EXPECT_EQ(gpu_backward_base("target=cuda_sm80", p, kHopper).target, Target::cuda_sm80);
    const BackwardConfig named = default_gpu_backward(p, kHopper);
    EXPECT_EQ(hopper_backward(p), named);
    EXPECT_EQ(named.target, Target::cuda_sm90);
    EXPECT_EQ(named.block_k, 64);
    EXPECT_TRUE(named.sm90_is_wide());
    EXPECT_LE(named.smem_bytes(), kHopper.smem_bytes);
  }
}

TEST(Sm90Legality, HoppersBackwardIsTheDefaultAndTextNamesOthers) {
  const Problem p = parse_problem("bwd bf16 b4 h32 s4096 d64");
  const auto forced = [&](const char* text) {
    return legal_config(text, gpu_backward_base(text, p, kHopper), p, kHopper);
  };
  EXPECT_EQ(forced("").target, Target::cuda_sm90);
  EXPECT_EQ(forced("").dq, DqSum::ordered);
  EXPECT_EQ(forced("BackwardConfig{target=cuda_sm80}").target, Target::cuda_sm80);
  EXPECT_EQ(forced("BackwardConfig{target=cuda_sm90,dq=unordered}").dq, DqSum::unordered);
  EXPECT_THROW(forced("BackwardConfig{target=cuda_sm80,dq=unordered}"), InvalidArgument);
  EXPECT_THROW(forced("BackwardConfig{target=cuda_sm90,sharing=2}"), InvalidArgument);
}

// Older texts of results and profiles name the same kernels.
TEST(Sm90Legality, TextsOfBackwardsLeaveOutWhatIsOff) {
  BackwardConfig config = hopper_backward(parse_problem("bwd bf16 h1 s64 d64"));
  EXPECT_EQ(to_text(config).find("dq_group"), std::string::npos) << to_text(config);
  EXPECT_EQ(to_text(config).find("early_turns"), std::string::npos) << to_text(config);
  config.dq_group = true;
  EXPECT_NE(to_text(config).find(".dq_group=true"), std::string::npos) << to_text(config);
  config = hopper_backward(parse_problem("bwd bf16 h1 s64 d64"));
  config.early_turns = true;
  EXPECT_NE(to_text(config).find(".early_turns=true"), std::string::npos) << to_text(config);
  EXPECT_EQ(parse_config(to_text(config), BackwardConfig{}), config);
}

TEST(Sm90Legality, WideBackwardsAddUpInOrderWhereAProblemAsksForTheSameBits) {
  const BackwardConfig free = hopper_backward(parse_problem("bwd bf16 h1 s64 d256"));
  EXPECT_EQ(free.dq, DqSum::unordered);
  const Problem same = parse_problem("bwd bf16 h1 s64 d256 deterministic");
  EXPECT_EQ(hopper_backward(same).dq, DqSum::ordered);
  EXPECT_TRUE(hopper_backward(same).early_turns);
  EXPECT_NE(check(free, same, kHopper).reason.find("deterministic problems take ordered"),
            std::string::npos);
  for (const BackwardConfig& config : sm90_wide_candidates(same, kHopper)) {
    EXPECT_EQ(config.dq, DqSum::ordered) << to_text(config);
  }
  EXPECT_EQ(hopper_backward(parse_problem("bwd bf16 h1 s64 d128")).dq, DqSum::ordered);
}

TEST(Sm90Legality, AWarpgroupMakesDqWhereItIsNamed) {
  const auto group = [](const char* text) {
    return gpu_backward_base(text, parse_problem("bwd bf16 h1 s4096 d64"), kHopper).dq_group;
  };
  EXPECT_FALSE(group("BackwardConfig{target=cuda_sm90}"));
  const std::string named = "BackwardConfig{target=cuda_sm90,dq_group=true}";
  const Problem p = parse_problem("bwd bf16 h1 s4096 d64");
  EXPECT_TRUE(legal_config(named, gpu_backward_base(named, p, kHopper), p, kHopper).dq_group);
}

TEST(Sm90Legality, PairsOfBlocksMakeDqWhereAQuerySeesEnoughKeys) {
  const auto cluster = [](const char* line) {
    return hopper_backward(parse_problem(line)).cluster;
  };
  EXPECT_EQ(cluster("bwd bf16 h1 s512 d128"), 2);
  EXPECT_EQ(cluster("bwd fp16 causal h1 s1024 d96"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s16384 d128 dv64 deterministic"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s256 d128"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s384 d128"), 1);
  EXPECT_EQ(cluster("bwd bf16 h1 s16384 d128 window(200,200)"), 1);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s512 d128"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s1024 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s8192 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s1024 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 causal h1 s512 d64"), 1);
  EXPECT_EQ(cluster("bwd bf16 h1 s256 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s4096 d64"), 2);
  EXPECT_EQ(cluster("bwd bf16 h1 s1024 d64 dv128"), 1);
  EXPECT_EQ(cluster("bwd bf16 h1 s4096 d256"), 1);
}

TEST(Sm90Legality, DqIsRoundedInTheSameGridWhereThatWasFaster) {
  const auto rounds = [](const char* line) {
    return hopper_backward(parse_problem(line)).rounds_dq;
  };
  EXPECT_TRUE(rounds("bwd bf16 h1 s1024 d128"));
  EXPECT_TRUE(rounds("bwd fp16 causal h1 s8192 d96"));
  EXPECT_TRUE(rounds("bwd bf16 causal h1 s512 d64"));
  EXPECT_TRUE(hopper_backward(parse_problem("bwd bf16 causal h1 s512 d64")).early_turns);
  EXPECT_FALSE(rounds("bwd bf16 h1 s512 d128"));
  EXPECT_FALSE(rounds("bwd bf16 causal h1 s511 d64"));
  EXPECT_FALSE(hopper_backward(parse_problem("bwd bf16 causal h1 s511 d64")).early_turns);
  EXPECT_FALSE(rounds("bwd bf16 h1 s16384 d128"));
  EXPECT_FALSE(rounds("bwd bf16 h1 s1024 d64 dv128"));
  EXPECT_FALSE(hopper_backward(parse_problem("bwd bf16 h1 s1024 d64 dv128")).early_turns);
}

TEST(Sm90Legality, KeysAreInRegistersWhereTheyFit) {
  const auto held = [](const char* line) {
    return hopper_backward(parse_problem(line)).keys_in_registers;
  };
  EXPECT_TRUE(held("bwd bf16 h1 s1024 d64"));
  EXPECT_TRUE(held("bwd fp16 causal h1 s300 d40 dv56"));
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d64 dv128"));
  EXPECT_TRUE(held("bwd bf16 h1 s1024 d96"));
  EXPECT_TRUE(held("bwd fp16 causal h1 s2048 d80 dv64"));
  EXPECT_FALSE(held("bwd bf16 h1 s100 d96"));  // by single blocks
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d128"));
  EXPECT_FALSE(held("bwd bf16 h1 s1024 d128 dv64"));
  const Problem p = parse_problem("bwd bf16 h1 s1024 d64");
  BackwardConfig config = hopper_backward(p);
  EXPECT_NE(to_text(config).find(".keys_in_registers=true"), std::string::npos) << to_text(config);
  EXPECT_EQ(parse_config(to_text(config), BackwardConfig{}), config);
  config.head_dim = config.value_dim = 128;
  config.block_q = config.dq_block_q = 64;
  const Problem wider = parse_problem("bwd bf16 h1 s1024 d128");
  EXPECT_NE(check(config, wider, kHopper).reason.find("keys_in_registers=true has dq_group=false"),
            std::string::npos);
}

TEST(Sm90Legality, SumsOfLongSequencesComeAsTheyComeUnlessBitsMatter) {
  const auto dq = [](const char* line) { return hopper_backward(parse_problem(line)).dq; };
  EXPECT_EQ(dq("bwd bf16 h1 s16384 d128"), DqSum::unordered);
  EXPECT_EQ(dq("bwd bf16 h1 s16384 d128 deterministic"), DqSum::ordered);
  EXPECT_EQ(dq("bwd bf16 h1 s8192 d128"), DqSum::ordered);
  EXPECT_EQ(dq("bwd bf16 h1 s16384 d64"), DqSum::unordered);
  EXPECT_EQ(dq("bwd bf16 h1 s16384 d64 deterministic"), DqSum::ordered);
  EXPECT_EQ(dq("bwd bf16 causal h1 s16384 d64"), DqSum::unordered);
  EXPECT_EQ(dq("bwd bf16 causal h1 s16384 d64 deterministic"), DqSum::ordered);
}

TEST(Sm90Legality, PairsSkipHiddenTilesUnderAMask) {
  const Problem p = parse_problem("bwd bf16 causal b16 h16 s1024 d128");
  const BackwardConfig planned = hopper_backward(p);
  EXPECT_TRUE(planned.skips_hidden);
  EXPECT_EQ(parse_config(to_text(planned), BackwardConfig{}), planned);
  EXPECT_TRUE(hopper_backward(parse_problem("bwd fp16 h1 s4096 d64 window(2048,0)")).skips_hidden);
  const BackwardConfig all = hopper_backward(parse_problem("bwd bf16 b16 h16 s1024 d128"));
  EXPECT_FALSE(all.skips_hidden);
  EXPECT_EQ(to_text(all).find("skips_hidden"), std::string::npos);
}

TEST(Sm90Legality, PairsNestTheirKeysUnderAMask) {
  const Problem p = parse_problem("bwd bf16 causal b16 h16 s1024 d128");
  const BackwardConfig planned = hopper_backward(p);
  EXPECT_TRUE(planned.nested_keys);
  EXPECT_EQ(parse_config(to_text(planned), BackwardConfig{}), planned);
  EXPECT_FALSE(legal_config("nested_keys=false", planned, p, kHopper).nested_keys);
  EXPECT_TRUE(hopper_backward(parse_problem("bwd fp16 h1 s4096 d64 window(2048,0)")).nested_keys);
  const BackwardConfig all = hopper_backward(parse_problem("bwd bf16 b16 h16 s1024 d128"));
  EXPECT_FALSE(all.nested_keys);
  EXPECT_EQ(to_text(all).find("nested_keys"), std::string::npos);
}

TEST(Sm90Legality, PairsStayWhereThatWasFaster) {
  const auto stay = [](const char* line) {
    return hopper_backward(parse_problem(line)).persistent;
  };
  EXPECT_TRUE(stay("bwd bf16 h1 s1024 d128"));
  EXPECT_TRUE(stay("bwd fp16 causal h1 s2048 d96"));
  EXPECT_TRUE(stay("bwd bf16 causal h1 s16384 d64"));
  EXPECT_FALSE(stay("bwd bf16 h1 s4096 d128"));
  EXPECT_FALSE(stay("bwd bf16 causal h1 s4096 d128"));
  EXPECT_FALSE(stay("bwd bf16 h1 s4096 d96"));
  EXPECT_TRUE(stay("bwd bf16 causal h1 s4096 d96"));
  EXPECT_TRUE(stay("bwd bf16 h1 s16384 d128"));  // sums as they come
  EXPECT_FALSE(stay("bwd bf16 h1 s16384 d128 deterministic"));
  EXPECT_FALSE(stay("bwd bf16 causal h1 s16384 d128"));
  EXPECT_FALSE(stay("bwd bf16 h1 s128 d64"));
  EXPECT_FALSE(stay("bwd bf16 h1 s1024 d256"));
  const Problem p = parse_problem("bwd bf16 h1 s1024 d128");
  BackwardConfig config = hopper_backward(p);
  EXPECT_NE(to_text(config).find(".persistent=true"), std::string::npos) << to_text(config);
  config.cluster = 1;
  EXPECT_NE(check(config, p, kHopper).reason.find("persistent=true is of cluster=2"),
            std::string::npos);
}

// What a text says may not go with the usual tile: then another is meant.
TEST(Sm90Legality, TextsAreSaidOfATileTheyAreLegalWith) {
  const Problem p = parse_problem("bwd bf16 h1 s4096 d128");
  const auto meant = [&](const char* text) {
    return legal_config(text, gpu_backward_base(text, p, kHopper), p, kHopper);
  };
  EXPECT_EQ(meant("BackwardConfig{stages=2}").cluster, 2);
  EXPECT_EQ(meant("BackwardConfig{cluster=2}"), hopper_backward(p));
  for (const char* text : {"BackwardConfig{dq=unordered}", "BackwardConfig{stages=3}",
                           "BackwardConfig{dq_block_q=128,cluster=1}"}) {
    EXPECT_EQ(meant(text).cluster, 1) << text;
  }
  EXPECT_THROW(meant("BackwardConfig{stages=9}"), InvalidArgument);
}

// A text of results and profiles names one kernel, whatever is the default since.
TEST(Sm90Legality, WholeTextsAreOffWhereTheySayNothing) {
  const Problem p = parse_problem("bwd bf16 h1 s64 d64");
  const BackwardConfig usual = hopper_backward(p);
  BackwardConfig other = usual;
  other.dq_group = other.early_turns = true;
  EXPECT_EQ(parse_config(to_text(usual), other), usual);
  EXPECT_TRUE(parse_config("stages=2", other).early_turns);

  const ForwardConfig forward = gpu_forward_base("ForwardConfig{target=cuda_sm90}",
                                                 parse_problem("fwd bf16 h1 s64 d64"), kHopper);
  ForwardConfig base = forward;
  base.skip = base.own_output = true;
  base.cluster = 2;
  EXPECT_EQ(parse_config(to_text(forward), base), forward);
  EXPECT_EQ(parse_config("stages=2", base).cluster, 2);
}

TEST(Sm90Legality, EveryRuleOfTheBackwardRefusesWithItsReason) {
  const Problem p = parse_problem("bwd bf16 h2 s64 d128");
  const BackwardConfig good = hopper_backward(p);
  ASSERT_TRUE(check(good, p, kHopper));
  const auto refused = [&](auto change, const char* why) {
    BackwardConfig config = good;
    change(config);
    return check(config, p, kHopper).reason.find(why) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& c) { c.element = DType::fp16; }, "element=fp16"));
  EXPECT_TRUE(refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 64; }, "block_k=64"));
  EXPECT_TRUE(refused([](auto& c) { c.warps = 12; }, "warps=12"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 128; }, "head_dim=128 takes 64"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 1; }, "stages=1"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 5; }, "stages=5"));
  EXPECT_TRUE(refused([](auto& c) { c.dq = DqSum::recomputed; }, "dq=recomputed"));
  EXPECT_TRUE(refused([](auto& c) { c.dq_group = true; }, "up to 64, not 128 and 128"));
  EXPECT_TRUE(refused(
      [](auto& c) {
        c.early_turns = true;
        c.dq = DqSum::unordered;
      },
      "early_turns=true is of dq=ordered"));
  EXPECT_TRUE(refused([](auto& c) { c.cluster = 4; }, "cluster=4; 1 or 2"));
  EXPECT_TRUE(refused([](auto& c) { c.cluster = 2; }, "takes early_turns=true"));
  EXPECT_TRUE(refused(
      [](auto& c) {
        c.cluster = 2;
        c.early_turns = true;
        c.dq_block_q = 128;
      },
      "turns of block_q=64 rows, not 128"));
  EXPECT_TRUE(refused([](auto& c) { c.dq_block_q = 96; }, "dq_block_q=96"));
  EXPECT_TRUE(refused([](auto& c) { c.skips_hidden = true; }, "skips_hidden=true is of cluster=2"));
  EXPECT_TRUE(refused([](auto& c) { c.nested_keys = true; }, "nested_keys=true is of cluster=2"));
  EXPECT_TRUE(refused([](auto& c) { c.dq_block_q = 256; }, "dq_block_q=256"));
  const auto reason = [&](const char* line, BackwardConfig config) {
    return check(config, parse_problem(line), kHopper).reason;
  };
  BackwardConfig pair = hopper_backward(parse_problem("bwd bf16 h1 s64 d64 dv128"));
  pair.cluster = 2;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", pair).find("or both up to 64, not 64 and 128"),
            std::string::npos);
  pair = hopper_backward(parse_problem("bwd bf16 h1 s2048 d64"));
  pair.rounds_dq = pair.persistent = false;
  pair.stages = 3;
  EXPECT_NE(reason("bwd bf16 h1 s2048 d64", pair).find("shared memory"), std::string::npos);
  pair.stages = 2;
  EXPECT_EQ(reason("bwd bf16 h1 s2048 d64", pair), "");
  BackwardConfig wide = hopper_backward(parse_problem("bwd bf16 h1 s64 d256"));
  wide.block_k = 128;
  EXPECT_NE(reason("bwd bf16 h1 s64 d256", wide).find("takes 64, 8 and 1"), std::string::npos);
  wide.block_k = 64;
  wide.stages = 3;
  EXPECT_NE(reason("bwd bf16 h1 s64 d256", wide).find("shared memory"), std::string::npos);
  wide.head_dim = 64;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv256", wide).find("d from 65 on"), std::string::npos);
  BackwardConfig narrow = hopper_backward(parse_problem("bwd bf16 h1 s64 d64"));
  EXPECT_NE(reason("bwd bf16 h1 s64 d32", narrow).find("pad d=32"), std::string::npos);
  narrow.stages = 4;
  narrow.value_dim = 128;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", narrow).find("and value_dim up to 64"),
            std::string::npos);
  narrow.keys_in_registers = false;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", narrow).find("shared memory"), std::string::npos);
  narrow.dq = DqSum::unordered;
  EXPECT_NE(reason("bwd bf16 h1 s64 d64 dv128", narrow).find("spill"), std::string::npos);
}

}  // namespace
}  // namespace dfa
