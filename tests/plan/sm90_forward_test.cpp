
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "kernels/launch.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

const Limits kHopper = gpu_limits(90);

TEST(Sm90Legality, HopperAloneRunsItAndEveryWideHalfPrecisionProblemTakesIt) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (int d = 8; d <= 256; d += 8) {
      for (const int dv : {8, d, 256}) {
        const Problem p{.dtype = type, .sq = 100, .sk = 100, .d = d, .dv = dv};
        const bool wide = std::max(d, dv) > 32;
        EXPECT_EQ(select_forward(p, kHopper).target == Target::cuda_sm90, wide) << d << dv;
        EXPECT_EQ(bool(sm90_fits(p, kHopper)), wide);
        for (const int other : {80, 89, 100, 120}) {
          EXPECT_EQ(select_forward(p, gpu_limits(other)).target, Target::cuda_sm80);
        }
      }
    }
  }
}

// Until a card has run them no plan takes them unnamed; a draw fills whole tiles of one head.
TEST(Sm90Legality, DropoutInTheForward) {
  const std::string dims = "fwd bf16 causal b4 hq16 hk4 s4096 d";
  for (const char* d : {"64", "128", "256"}) {
    const Problem p = parse_problem(dims + d + " dropout(0.1,3)");
    const ForwardConfig named = select_forward(p, kHopper);
    ASSERT_EQ(named.target, Target::cuda_sm90);
    EXPECT_TRUE(sm90_fits(p, kHopper));
    EXPECT_TRUE(named.dropout && validate_config(named, p, kHopper));
    EXPECT_EQ(parse_config(to_text(named), ForwardConfig{}), named);
    const auto refused = [&](auto change, const char* why) {
      ForwardConfig c = named;
      change(c);
      EXPECT_NE(validate_config(c, p, kHopper).reason.find(why), std::string::npos) << why;
    };
    refused([](ForwardConfig& c) { c.block_k = 80; }, "multiples of 32");
    refused([](ForwardConfig& c) { c.pack_gqa = 4; }, "pack_gqa=4");
    refused([](ForwardConfig& c) { c.dropout = false; }, "dropout takes dropout=true");
    const Problem plain = parse_problem(dims + d);
    EXPECT_NE(validate_config(named, plain, kHopper).reason.find("problems with dropout"),
              std::string::npos);
  }
  const auto fits = [](const char* line) {
    return !sm90_candidates(parse_problem(std::string("fwd bf16 ") + line + " dropout(0.1,3)"),
                            kHopper)
                .empty();
  };
  EXPECT_TRUE(fits("h4 lens(640,90) d128"));
  EXPECT_FALSE(fits("h4 lens(640,90) d256"));  // registers spill
  const Problem halves = parse_problem("fwd fp16 h4 s640 d256 dropout(0.1,3)");
  EXPECT_EQ(select_forward(halves, kHopper).target, Target::cuda_sm80);
  const Problem few = parse_problem("fwd bf16 causal b1 hq8 hk1 sq8 sk4096 d128 dropout(0.1,3)");
  EXPECT_EQ(gpu_forward_base("target=cuda_sm90", few, kHopper).pack_gqa, 1);
}

TEST(Sm90Legality, TextNamesTheOtherKernelsAndTheirDefaultsAreTheBase) {
  const Problem p = parse_problem("fwdbwd bf16 causal h4 s512 d128");
  const auto forced = [&](const char* text) {
    return legal_config(text, gpu_forward_base(text, p, kHopper), p, kHopper);
  };
  EXPECT_EQ(forced("").target, Target::cuda_sm90);
  Limits portable = kHopper;
  portable.highest = Target::cuda_sm80;
  EXPECT_EQ(forced(".target=cuda_sm80"), select_forward(p, portable));
  EXPECT_EQ(forced("ForwardConfig{.target=Target::cuda_sm80,.block_k=32}").block_k, 32);
  EXPECT_EQ(forced("BackwardConfig{.target=cuda_sm80}").target, Target::cuda_sm90);
  EXPECT_FALSE(forced("pingpong=false").pingpong);
  EXPECT_THROW(forced("pingpong=1"), InvalidArgument);
  EXPECT_THROW(forced("target=cuda_sm80,pingpong=true"), InvalidArgument);
}

// Kernels are of the problem's logits, which are all named by their text.
TEST(Sm90Legality, LogitsAreThoseOfTheProblem) {
  const Problem plain = parse_problem("fwd bf16 causal h4 s512 d128");
  const std::string sm90 = "target=cuda_sm90,cluster=1,block_q=128,warps=8,";
  for (const std::string said : {"softcap", "alibi", "sink"}) {
    const Problem p = parse_problem(to_line(plain) + " " + said + (said == "softcap" ? "(3)" : ""));
    ForwardConfig config = select_forward(plain, kHopper);
    EXPECT_THROW(asked_forward(sm90 + said + "=true", plain, kHopper), InvalidArgument) << said;
    EXPECT_EQ(validate_config(config, p, kHopper).reason,
              "softcap, alibi, bias, sink and text are not those of the problem");
    set_logits(config, p);
    EXPECT_NE(to_text(config).find("." + said + "=true"), std::string::npos);
    const Verdict legal = validate_config(config, p, kHopper);
    EXPECT_TRUE(legal) << legal.reason;
    EXPECT_EQ(select_forward(p, kHopper).target, Target::cuda_sm90);
    EXPECT_TRUE(sm90_fits(p, kHopper));
  }
  const Problem capped = parse_problem("bwd bf16 causal h4 s512 d128 softcap(3)");
  BackwardConfig wide = select_backward(parse_problem("bwd bf16 causal h4 s512 d256"), kHopper);
  wide.head_dim = wide.value_dim = 128;
  wide.softcap = true;
  EXPECT_EQ(validate_config(wide, capped, kHopper).reason, "");
  EXPECT_EQ(select_backward(capped, kHopper).target, Target::cuda_sm90);
  const Problem biased = parse_problem(to_line(plain) + " bias(1,h)");
  EXPECT_EQ(select_forward(biased, kHopper).target, Target::cuda_sm90);
  EXPECT_TRUE(sm90_fits(biased, kHopper));
  const Problem wide_bias = parse_problem("fwd bf16 causal h4 s512 d256 bias(1,h)");
  EXPECT_EQ(select_forward(wide_bias, kHopper).target, Target::cuda_sm80);
  EXPECT_FALSE(sm90_fits(wide_bias, kHopper));
}

TEST(Sm90Legality, ProblemsTakeTheTileThatWasMeasuredOrPredictedToTakeTheLeastJoules) {
  const auto tile = [](const char* line) {
    const ForwardConfig c = select_forward(parse_problem(line), kHopper);
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

// Of benchmarks/ab: problem lines, below each its tiles as changes to the planned one.
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
  for (const char* file : {"ab_forward.txt", "ab_decode.txt", "ab_shares.txt"}) {
    for_each_turn(file, [](const Problem& asked, const std::string& changes) {
      const Problem p = with_pack_gqa(asked);
      const std::string text = "ForwardConfig{" + changes + "}";
      EXPECT_NE(legal_config(text, gpu_forward_base(text, p, kHopper), p, kHopper),
                select_forward(p, kHopper))
          << changes;
    });
  }
  for_each_turn("ab_texts.txt", [](const Problem& p, const std::string& changes) {
    const std::string text = "ForwardConfig{" + changes + "}";
    EXPECT_EQ(legal_config(text, gpu_forward_base(text, p, kHopper), p, kHopper).target,
              changes.find("sm80") == std::string::npos ? Target::cuda_sm90 : Target::cuda_sm80)
        << changes;
  });
  for_each_turn("ab_backward.txt", [](const Problem& p, const std::string& changes) {
    const BackwardConfig planned =
        gpu_backward_base("BackwardConfig{target=cuda_sm90}", p, kHopper);
    EXPECT_NE(legal_config("BackwardConfig{" + changes + "}", planned, p, kHopper), planned)
        << changes;
  });
  for (const char* file : {"ab_backward_variants.txt", "ab_texts_backward.txt"}) {
    for_each_turn(file, [](const Problem& p, const std::string& changes) {
      const std::string text = "BackwardConfig{" + changes + "}";
      EXPECT_EQ(legal_config(text, gpu_backward_base(text, p, kHopper), p, kHopper).target,
                changes.find("sm80") == std::string::npos ? Target::cuda_sm90 : Target::cuda_sm80)
          << changes;
    });
  }
}

TEST(Sm90Legality, TurnsAreOfLongItemsWithoutAMask) {
  const auto turns = [](const char* line) {
    return select_forward(parse_problem(line), kHopper).pingpong;
  };
  EXPECT_FALSE(turns("fwd bf16 b32 h16 s512 d128"));
  EXPECT_TRUE(turns("fwd bf16 b16 h16 s1024 d128"));
  EXPECT_FALSE(turns("fwd bf16 causal b16 h16 s1024 d128"));
}

TEST(Sm90Legality, PairsOfBlocksAreOfLongItemsAndWideOutputsLeaveByHalves) {
  const auto taken = [](const char* line) { return select_forward(parse_problem(line), kHopper); };
  for (const char* line : {"fwd bf16 b1 h16 s16384 d128", "fwd bf16 causal b1 h16 s16384 d128",
                           "fwd bf16 b4 h16 s4096 d128", "fwd bf16 b4 h8 s4096 d256",
                           "fwd bf16 b1 h8 s16384 d256", "fwd bf16 causal b4 h8 s4096 d256",
                           "fwd bf16 causal b2 h8 s8192 d256", "fwd fp16 b4 h16 s4096 d128",
                           "fwd fp16 b4 h8 s4096 d256", "fwd bf16 causal b4 h11 s4096 d192"}) {
    EXPECT_EQ(taken(line).cluster, 2) << line;
  }
  for (const char* line :
       {"fwd bf16 causal b4 h16 s4096 d128", "fwd bf16 b16 h16 s1024 d128",
        "fwd bf16 b32 h16 s512 d128", "fwd bf16 b32 h8 s512 d256", "fwd bf16 b16 h8 s1024 d256",
        "fwd bf16 b4 h21 s4096 d96", "fwd fp16 causal b4 h16 s4096 d128",
        "fwd bf16 b1 h16 sq64 sk16384 d128"}) {
    EXPECT_EQ(taken(line).cluster, 1) << line;
  }
  EXPECT_TRUE(taken("fwd bf16 causal b32 h8 s512 d256").own_output());
  EXPECT_TRUE(taken("fwd bf16 b1 h8 s16384 d256").own_output());
  EXPECT_FALSE(taken("fwd bf16 b1 h16 s16384 d128").own_output());
}

// 80 would spill.
TEST(Sm90Legality, PairsWithWideOutputsTake64Keys) {
  const auto reason = [](const std::string& changes) {
    const Problem p = parse_problem("fwd bf16 h2 s300 d64 dv256");
    const ForwardConfig base = select_forward(p, kHopper);
    return validate_config(parse_config("ForwardConfig{" + changes + "}", base), p, kHopper).reason;
  };
  EXPECT_EQ(reason("block_k=80,cluster=1,q_stages=2,block_q=64,warps=4"), "");
  EXPECT_EQ(reason("block_k=80,cluster=2,q_stages=2,block_q=64,warps=4")
                .find("block_k=80 but pairs with value_dim above 192"),
            0u);
  EXPECT_EQ(reason("block_k=64,cluster=2,q_stages=2,block_q=64,warps=4"), "");
  EXPECT_EQ(reason("block_k=80,cluster=2,q_stages=1"), "");
}

TEST(Sm90Legality, TextNamesPairsWhereTheyAreTakenAlone) {
  const auto text = [](const char* line) {
    return to_text(select_forward(parse_problem(line), kHopper));
  };
  EXPECT_EQ(text("fwd bf16 b16 h16 s1024 d128").find("cluster"), std::string::npos);
  const std::string both = text("fwd bf16 b1 h8 s16384 d256");
  EXPECT_NE(both.find(".q_stages=1,.pingpong=false,.cluster=2"), std::string::npos) << both;
  EXPECT_EQ(to_text(parse_config(both, ForwardConfig{})), both);
}

TEST(Sm90Legality, ColumnsOfQAreHeldByTilesOf64KeysOrWhereTheyAreNamedAndFit) {
  const auto held = [](const char* line) {
    return select_forward(parse_problem(line), kHopper).q_columns_in_regs;
  };
  EXPECT_EQ(held("fwd bf16 b4 h32 s4096 d64"), 0);
  EXPECT_EQ(held("fwd bf16 b4 h21 s4096 d96"), 96);
  EXPECT_EQ(held("fwd bf16 causal b8 h16 s2048 d128"), 128);
  EXPECT_EQ(held("fwd bf16 b4 h16 s4096 d128"), 0);
  EXPECT_EQ(held("fwd bf16 b16 h8 s1024 d256"), 96);
  EXPECT_EQ(held("fwd fp16 b4 h21 s4096 d96"), 0);
  const Problem p = parse_problem("fwd bf16 b1 h8 s16384 d256");
  const ForwardConfig planned = select_forward(p, kHopper);
  EXPECT_EQ(planned.q_columns_in_regs, 96);
  EXPECT_NE(to_text(planned).find(",.q_columns_in_regs=96}"), std::string::npos);
  const auto forced = [&](const char* text) { return legal_config(text, planned, p, kHopper); };
  EXPECT_EQ(forced("q_columns_in_regs=0").q_columns_in_regs, 0);
  EXPECT_EQ(to_text(forced("q_columns_in_regs=0")).find("q_columns_in_regs"), std::string::npos);
  EXPECT_THROW(forced("q_columns_in_regs=112"), InvalidArgument);  // registers
  EXPECT_THROW(forced("q_columns_in_regs=-16"), InvalidArgument);
}

// Not where it gains little, and of another layout heads stay apart.
TEST(Sm90Legality, HeadsArePackedWhereTheySeeFewKeysOfAWindowTogether) {
  const auto heads = [](const std::string& line) {
    return select_forward(parse_problem(line), kHopper).pack_gqa;
  };
  for (const char* layout : {"", " layout(bshd)"}) {
    for (const char* pass : {"fwd", "fwdbwd"}) {
      const std::string line = std::string(pass) + " bf16 b2 hq64 hk8 s8192 d64" + layout;
      EXPECT_EQ(heads(line + " window(127,0) sink"), 8) << line;
      EXPECT_EQ(heads(line + " window(2000,0)"), 1) << line;
      EXPECT_EQ(heads(line + " chunk(8192)"), 1) << line;
    }
  }
  EXPECT_EQ(heads("fwd bf16 b2 hq16 hk4 s8192 d128 window(127,0)"), 1);
  EXPECT_EQ(heads("fwd bf16 b2 hq64 hk8 s8192 d64 window(127,0) dropout(0.1,1)"), 1);
}

TEST(Sm90Legality, HeadsArePackedWhereTheyFillTilesOrWhereTheyAreNamedAndDivideAGroup) {
  const Problem p = parse_problem("fwd bf16 causal b3 hq48 hk4 sq20 sk700 d128");
  const ForwardConfig planned = select_forward(p, kHopper);
  EXPECT_EQ(planned.pack_gqa, 4);
  EXPECT_NE(to_text(planned).find(",.pack_gqa=4}"), std::string::npos);
  EXPECT_EQ(parse_config(to_text(planned), ForwardConfig{}), planned);
  const auto forced = [&](const char* text) { return legal_config(text, planned, p, kHopper); };
  EXPECT_EQ(forced("pack_gqa=2").pack_gqa, 2);
  EXPECT_EQ(to_text(forced("pack_gqa=1")).find("pack_gqa"), std::string::npos);
  EXPECT_THROW(forced("pack_gqa=8"), InvalidArgument);  // 12 heads a group
  EXPECT_THROW(forced("pack_gqa=5"), InvalidArgument);
  EXPECT_THROW(forced("pack_gqa=0"), InvalidArgument);
  EXPECT_THROW(forced("pack_gqa=32"), InvalidArgument);
  const ForwardConfig three = forced("pack_gqa=3"), twelve = forced("pack_gqa=12");
  EXPECT_EQ(three.query_rows(), 4);
  EXPECT_EQ(twelve.query_rows(), 16);
  EXPECT_EQ(forward_tile_grid(p, twelve, 132).heads, 12);
  EXPECT_EQ(forward_tile_grid(p, twelve, 132).tiles,
            (20 * 16 + twelve.work_tile_rows() - 1) / twelve.work_tile_rows());
  EXPECT_FALSE(forced("pack_gqa=3").own_output());
  Problem endless = p;
  endless.hq = 64;
  endless.sq = 1LL << 25;
  ForwardConfig config = select_forward(endless, kHopper);
  ASSERT_TRUE(validate_config(config, endless, kHopper))
      << validate_config(config, endless, kHopper).reason;
  EXPECT_EQ(config.pack_gqa, 1);
  config.pack_gqa = 16;
  EXPECT_NE(validate_config(config, endless, kHopper).reason.find("more rows"), std::string::npos);
  const Problem single = parse_problem("fwd fp32 causal b3 hq48 hk4 sq20 sk700 d128");
  EXPECT_EQ(select_forward(single, kHopper).pack_gqa, 1);
  EXPECT_THROW(legal_config("pack_gqa=4", select_forward(single, kHopper), single, kHopper),
               InvalidArgument);
}

// Whoever measures tiles hands them to a plan, which works on the problem packed.
TEST(Sm90Legality, CandidatesOfAProblemThatIsPackedAreLegalOfBoth) {
  for (const char* line :
       {"fwd bf16 b3 hq32 hk4 sq1 sk700 d128", "fwd fp32 b3 hq32 hk4 sq1 sk700 d128",
        "fwd fp16 b3 hq8 hk4 sq33 sk70 d16"}) {
    const Problem p = parse_problem(line), packed = with_pack_gqa(p);
    ASSERT_NE(packed, p);
    const auto candidates = forward_candidates(p, kHopper);
    EXPECT_EQ(candidates, forward_candidates(packed, kHopper)) << line;
    EXPECT_EQ(select_forward(p, kHopper), select_forward(packed, kHopper)) << line;
    for (const ForwardConfig& config : candidates) {
      EXPECT_TRUE(validate_config(config, p, kHopper)) << to_text(config);
      EXPECT_TRUE(validate_config(config, packed, kHopper)) << to_text(config);
      EXPECT_EQ(config.pack_gqa, 1);
    }
  }
}

// 20 work tiles of 12 heads in 16 rows a query where there were 240 of 5 rows.
TEST(Sm90Legality, PackedHeadsMakeFewerItems) {
  const Problem p = parse_problem("fwd bf16 causal b10 hq24 hk2 sq5 sk700 d128");
  const ForwardConfig packed = select_forward(p, kHopper);
  EXPECT_EQ(packed.pack_gqa, 12);
  EXPECT_EQ(forward_launches(p, packed)[0].grid, 20u);
  EXPECT_EQ(forward_tile_grid(p, packed, 132).heads, 20);
}

// Groups that are no power of two have tiles of up to 128 rows: larger ones have no registers.
TEST(Sm90Legality, OddGroupsHaveATileInEveryHeadDim) {
  for (const char* type : {"bf16", "fp16"}) {
    for (const char* d : {"40", "64", "96", "128", "192", "256"}) {
      const Problem p =
          parse_problem("fwd " + std::string(type) + " causal b10 hq14 hk2 sq5 sk700 d" + d);
      const ForwardConfig c = select_forward(p, kHopper);
      EXPECT_EQ(c.target, Target::cuda_sm90) << to_line(p);
      EXPECT_EQ(c.pack_gqa, 7) << to_line(p);
      EXPECT_LE(c.block_q, 128) << to_line(p);
      EXPECT_EQ(c.cluster, 1) << to_line(p);
      EXPECT_FALSE(c.own_output()) << to_line(p);
    }
  }
  const Problem p = parse_problem("fwd bf16 causal b10 hq14 hk2 sq5 sk700 d64");
  ForwardConfig wide = select_forward(p, kHopper);
  wide.block_q = 256;
  wide.block_k = 64;
  wide.warps = 16;
  EXPECT_NE(validate_config(wide, p, kHopper).reason.find("pack_gqa=7, no power of two"),
            std::string::npos);
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
    return select_forward(parse_problem(line), kHopper).static_max();
  };
  EXPECT_TRUE(stays("fwd bf16 h4 s512 d128"));
  EXPECT_FALSE(stays("fwd fp16 h4 s512 d128"));
}

TEST(Sm90Legality, LastItemsAreDealtOutInSharesWhereItIsAskedFor) {
  const Problem p = parse_problem("fwd bf16 h66 sq200 sk8192 d128");  // whole rounds
  const ForwardConfig usual = select_forward(p, kHopper);
  EXPECT_EQ(usual.num_splits, 0);
  EXPECT_EQ(to_text(usual).find("num_splits"), std::string::npos);
  ForwardConfig num_splits = legal_config("num_splits=132", usual, p, kHopper);
  EXPECT_NE(to_text(num_splits).find(",.num_splits=132}"), std::string::npos);
  EXPECT_EQ(parse_config(to_text(num_splits), ForwardConfig{}), num_splits);
  const auto reason = [&] { return validate_config(num_splits, p, kHopper).reason; };
  num_splits.num_splits = 257;
  EXPECT_NE(reason().find("num_splits=257; 0 to 256"), std::string::npos);
  num_splits.num_splits = 132;
  num_splits.block_q = 192;
  num_splits.warps = 12;
  EXPECT_NE(reason().find("block_q up to 128"), std::string::npos);
  num_splits = legal_config("num_splits=66", usual, p, kHopper);
  num_splits.cluster = 2;
  EXPECT_NE(reason().find("of pairs an output with a place of its own"), std::string::npos);
}

// Of few work tiles each is cut into as many pieces, and no more than there are multiprocessors;
// one that is short, or of a mask that leaves work tiles apart, stays whole.
TEST(Sm90Legality, FewItemsOfManyKeysAreDealtOutInShares) {
  const auto splits_of = [](const char* line) {
    return select_forward(parse_problem(line), kHopper).num_splits;
  };
  for (const char* line :
       {"fwd bf16 b4 h8 sq8 sk8000 d128", "fwd bf16 b1 h8 sq8 sk32000 d128",
        "fwd fp16 b1 h8 sq256 sk16384 d64", "fwd bf16 causal b1 h8 sq100 sk16384 d256"}) {
    const Problem p = parse_problem(line);
    const ForwardConfig c = select_forward(p, kHopper);
    const auto work_tiles = p.b * p.hq * ((p.sq + c.block_q - 1) / c.block_q);
    EXPECT_GE(c.num_splits, 2 * work_tiles) << line;
    EXPECT_LE(c.num_splits, 132) << line;
    EXPECT_EQ(c.num_splits % work_tiles, 0) << line;
  }
  EXPECT_EQ(splits_of("fwd bf16 b1 h8 sq8 sk32000 d128"), 128);
  EXPECT_EQ(splits_of("fwd bf16 b8 h8 sq8 sk4096 d128"), 0);  // 64 work tiles fill the memory
  EXPECT_EQ(splits_of("fwd bf16 b1 h8 sq8 sk256 d128"), 0);
  EXPECT_EQ(splits_of("fwd bf16 b32 h4 sq8 sk2048 d128"), 0);
  EXPECT_EQ(splits_of("fwd bf16 causal b1 h8 s1024 d128"), 0);
  EXPECT_EQ(splits_of("fwd bf16 b4 h8 s4096 d256"), 0);
  EXPECT_EQ(splits_of("fwd bf16 b1 h24 sq1024 sk32768 d128"), 132);  // 1.45 rounds
  EXPECT_EQ(splits_of("fwd bf16 b1 h8 s32768 d256"), 66);            // 15.5, of long work tiles
  EXPECT_EQ(splits_of("fwd bf16 b1 h8 s16384 d256"), 0);
}

TEST(Sm90Legality, EveryRuleRefusesWithItsReason) {
  const Problem p = parse_problem("fwd bf16 h2 s256 d128");
  const ForwardConfig good = select_forward(p, kHopper);
  ASSERT_TRUE(validate_config(good, p, kHopper));
  const auto refused = [&](auto change, const char* why) {
    ForwardConfig config = good;
    change(config);
    return validate_config(config, p, kHopper).reason.find(why) != std::string::npos;
  };
  EXPECT_TRUE(refused([](auto& c) { c.element = DType::fp16; }, "element=fp16"));
  EXPECT_TRUE(refused([](auto& c) { c.head_dim = 64; }, "d=128 takes 128"));
  EXPECT_TRUE(refused([](auto& c) { c.value_dim = 256; }, "dv=128"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 96; }, "block_q=96"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 320; }, "block_q=320"));
  EXPECT_TRUE(refused([](auto& c) { c.cluster = 3; }, "cluster=3"));
  EXPECT_TRUE(refused([](auto& c) { c.q_columns_in_regs = 24; }, "q_columns_in_regs=24"));
  EXPECT_TRUE(refused([](auto& c) { c.q_columns_in_regs = 1024; }, "q_columns_in_regs=1024"));
  EXPECT_TRUE(refused([](auto& c) { c.warps = 4; }, "warps=8"));
  EXPECT_TRUE(refused([](auto& c) { c.ctas = 2; }, "ctas=1"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 48; }, "block_k=48"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 1; }, "stages=1"));
  EXPECT_TRUE(refused([](auto& c) { c.q_stages = 3; }, "q_stages=3"));
  EXPECT_TRUE(refused([](auto& c) { c.stages = 4; }, "shared memory"));
  EXPECT_TRUE(refused([](auto& c) { c.block_k = 256, c.stages = 2; }, "shared memory"));
  EXPECT_TRUE(refused([](auto& c) { c.block_q = 192, c.warps = 12, c.q_stages = 1; }, "registers"));
  EXPECT_NE(validate_config(good, p, gpu_limits(100)).reason.find("9.0 only"), std::string::npos);
}

TEST(Sm90Legality, ProblemsItCannotRunTakeThePortableKernelsWithTheReason) {
  const auto reason = [&](const char* line) {
    const Problem p = parse_problem(line);
    EXPECT_EQ(select_forward(p, kHopper).target, Target::cuda_sm80) << line;
    return sm90_fits(p, kHopper).reason;
  };
  EXPECT_NE(reason("fwd tf32 h1 s64 d64").find("fp32, not tf32"), std::string::npos);
  EXPECT_NE(reason("fwd fp32 h1 s64 d256").find("up to 128"), std::string::npos);
  EXPECT_NE(reason("fwd bf16 h1 s64 d32").find("pad heads"), std::string::npos);
  EXPECT_NE(reason("fwd bf16 h2 s64 d64 strides_k(8192,4096,68)").find("strides of k"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa
