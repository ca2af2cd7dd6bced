#include "spec/e4m3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/hopper_plan.h"
#include "plan/pack_gqa.h"
#include "plan/registers.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

Problem e4m3_problem(const std::string& rest) { return parse_problem("fwd e4m3 " + rest); }

std::string reason_of_e4m3(const Problem& p, const Limits& limits = kHopper90) {
  return validate_config(select_forward(p, limits), p, limits).reason;
}

TEST(Sm90E4m3, TakesDimsUpTo256OnHopperAlone) {
  for (int d = 16; d <= 256; d += 16) {
    for (const int dv : {16, d, 128, 192, 256}) {
      const Problem p{.dtype = DType::e4m3, .sq = 100, .sk = 300, .d = d, .dv = dv};
      const ForwardConfig config = select_forward(p, kHopper90);
      EXPECT_TRUE(is_e4m3(config)) << d << " " << dv;
      EXPECT_TRUE(validate_config(config, p, kHopper90))
          << d << " " << dv << validate_config(config, p, kHopper90).reason;
      EXPECT_TRUE(sm90_fits(p, kHopper90));
      for (const int capability : {75, 80, 89, 100}) {
        EXPECT_FALSE(
            validate_config(select_forward(p, gpu_limits(capability)), p, gpu_limits(capability)))
            << capability;
      }
    }
  }
}

TEST(Sm90E4m3, SixteenBitProblemsHaveNoneOfItsTiles) {
  for (const char* line :
       {"fwd bf16 h1 s64 d64", "fwd fp16 h8 s4096 d128", "fwd fp32 h1 s64 d64"}) {
    const auto all = forward_candidates(parse_problem(line), kHopper90);
    EXPECT_TRUE(std::none_of(all.begin(), all.end(), [](const auto& c) { return is_e4m3(c); }));
  }
  const auto own = forward_candidates(e4m3_problem("h1 s64 d128"), kHopper90);
  EXPECT_GE(own.size(), 4u);
  EXPECT_TRUE(std::all_of(own.begin(), own.end(), [](const auto& c) { return is_e4m3(c); }));
}

TEST(Sm90E4m3, WhatItDoesNotTakeHasAReason) {
  const auto names = [](const char* rest, const char* word) {
    const std::string why = reason_of_e4m3(e4m3_problem(rest));
    EXPECT_NE(why.find(word), std::string::npos) << rest << ": " << why;
  };
  EXPECT_EQ(reason_of_e4m3(e4m3_problem("h2 d64 lens(64,64)")), "");
  names("h2 d64 lens(64,64) page(16)", "pages");
  names("h2 s64 d64 softcap(3)", "softcap");
  names("h2 s64 d64 sink", "sink");
  names("h2 s64 d64 alibi", "alibi");
  names("h2 s64 d64 bias(b,h)", "bias");
  names("h2 s64 d64 dropout(0.5,1)", "dropout");
  names("causal h2 s64 d64 chunk(9)", "chunk");
  names("h2 s256 d64 blocks(128x128)", "blocks");
  names("h2 s64 d320", "256");
  names("h2 s64 d72", "multiples of 16");
  names("h2 s64 d64 dv72", "multiples of 16");
}

TEST(Sm90E4m3, EveryRuleRefusesWithItsReason) {
  const Problem p = e4m3_problem("hq6 hk2 s64 d128");
  const ForwardConfig good = select_forward(p, kHopper90);
  ASSERT_TRUE(validate_config(good, p, kHopper90));
  const auto refused = [&](auto change, const char* why) {
    ForwardConfig config = good;
    change(config);
    const std::string said = validate_config(config, p, kHopper90).reason;
    EXPECT_NE(said.find(why), std::string::npos) << why << ": " << said;
  };
  refused([](auto& c) { c.head_dim = 96; }, "head_dim");
  refused([](auto& c) { c.value_dim = 96; }, "value_dim");
  refused([](auto& c) { c.block_q = 256, c.warps = 16; }, "block_q");
  refused([](auto& c) { c.warps = 4; }, "warps");
  refused([](auto& c) { c.block_k = 80; }, "block_k");
  refused([](auto& c) { c.stages = 1; }, "stages");
  refused([](auto& c) { c.q_stages = 1; }, "q_stages");
  refused([](auto& c) { c.cluster = 4; }, "cluster");
  refused([](auto& c) { c.q_columns_in_regs = 64; }, "q_columns_in_regs");
  refused([](auto& c) { c.num_splits = 2; }, "num_splits");
  refused([](auto& c) { c.pack_gqa = 3; }, "pack_gqa");
  refused([](auto& c) { c.pack_gqa = 2; }, "pack_gqa");
  refused([](auto& c) { c.varlen = true; }, "packed");
  refused([](auto& c) { c.softcap = true; }, "softcap");
  refused([](auto& c) { c.descale_blocks = true; }, "descale_blocks=true is of factors");
  refused([](auto& c) { c.block_k = 192, c.stages = 2; }, "registers");
  refused([](auto& c) { c.block_k = 192, c.stages = 4; }, "shared memory");
  refused([](auto& c) { c.transpose_values = true, c.stages = 3; }, "transpose_values=true takes");
  refused([](auto& c) { c.transpose_values = true, c.cluster = 2; }, "transpose_values=true takes");
}

// What is copied once for every tile of queries pays where these are few and heads share no keys.
TEST(Sm90E4m3, TransposesValuesInTheForwardWhereAKernelBeforeCostsMore) {
  const auto transposes = [](const char* rest) {
    return select_forward(e4m3_problem(rest), kHopper90).transpose_values;
  };
  for (const char* d : {" d64", " d128", " d256"}) {
    EXPECT_TRUE(transposes((std::string("b4 hq16 hk16 s512") + d).c_str())) << d;
    EXPECT_TRUE(transposes((std::string("causal b4 hq32 hk32 s1024") + d).c_str())) << d;
    EXPECT_FALSE(transposes((std::string("b4 hq16 hk16 s16384") + d).c_str())) << d;
    EXPECT_FALSE(transposes((std::string("b4 hq64 hk8 s4096") + d).c_str())) << d;
  }
}

// Of every head dim there is a tile that has room for v as it lies beside it.
TEST(Sm90E4m3, TransposesValuesOfEveryHeadDim) {
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const char* rest :
         {"causal hq4 hk2 s4096", "hq4 hk2 lens(640,640)", "hq4 hk2 s4096 descale_rows(64)"}) {
      const Problem p = e4m3_problem(rest + std::string(" d") + std::to_string(d));
      ForwardConfig config = sm90_candidates(p, kHopper90)[0];
      config.transpose_values = true;
      if (d == 192) config.block_k = 64;
      const Verdict verdict = validate_config(config, p, kHopper90);
      EXPECT_TRUE(verdict) << to_line(p) << ": " << verdict.reason;
      EXPECT_EQ(parse_config(to_text(config), ForwardConfig{.target = Target::cuda_sm90}), config);
    }
  }
  ForwardConfig other =
      select_forward(parse_problem("fwd bf16 causal b4 h16 s4096 d128"), kHopper90);
  other.transpose_values = true;
  EXPECT_EQ(
      validate_config(other, parse_problem("fwd bf16 causal b4 h16 s4096 d128"), kHopper90).reason,
      "transpose_values=true is of cuda_sm90 in e4m3");
}

// Whether a card has run them or not: a tile of keys is of one block of rows.
TEST(Sm90E4m3, FactorsOfBlocksOfRowsHaveTilesThatDivideThem) {
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const std::int64_t rows : {64, 128, 192, 320, 1 << 20}) {
      Problem p = e4m3_problem("causal hq4 hk2 sq300 sk5000 d" + std::to_string(d));
      p.descale_rows = rows;
      const std::vector<ForwardConfig> all = sm90_candidates(p, kHopper90);
      ASSERT_FALSE(all.empty()) << d << " " << rows;
      for (const ForwardConfig& c : all) {
        EXPECT_TRUE(c.descale_blocks) << d << " " << rows;
        EXPECT_TRUE(rows % c.block_k == 0 || rows >= p.sk) << rows << " " << c.block_k;
      }
      // The usual tile, where that divides them.
      Problem usual = p;
      usual.descale_rows = 0;
      ForwardConfig first = select_forward(usual, kHopper90);
      if (rows % first.block_k != 0 && rows < p.sk) continue;
      first.descale_blocks = true;
      EXPECT_EQ(all[0], first) << d << " " << rows;
    }
  }
}

TEST(Sm90E4m3, WhatFactorsOfBlocksOfRowsDoNotTakeHasAReason) {
  const Problem p = e4m3_problem("h2 s300 d64 descale_rows(64)");
  const ForwardConfig good = sm90_candidates(p, kHopper90)[0];
  const auto refused = [&](auto change, const char* why) {
    ForwardConfig config = good;
    change(config);
    const std::string said = validate_config(config, p, kHopper90).reason;
    EXPECT_NE(said.find(why), std::string::npos) << why << ": " << said;
  };
  EXPECT_EQ(validate_config(good, p, kHopper90).reason, "");
  refused([](auto& c) { c.block_q = 128, c.warps = 8, c.block_k = 96; }, "blocks of 64 rows");
  refused([](auto& c) { c.block_q = 128, c.warps = 8, c.block_k = 128; }, "block_k=128");
  refused([](auto& c) { c.descale_blocks = false; }, "takes descale_blocks=true");
  const Problem of_16_bits = parse_problem("fwd bf16 h2 s300 d64");
  ForwardConfig wrong = select_forward(of_16_bits, kHopper90);
  wrong.descale_blocks = true;
  EXPECT_EQ(validate_config(wrong, of_16_bits, kHopper90).reason,
            "descale_blocks=true is of cuda_sm90 in e4m3");
  for (const char* rest : {"softcap(3)", "alibi", "sink", "dropout(0.5,1)", "chunk(9)"}) {
    const std::string name = std::string(rest).substr(0, std::string(rest).find('('));
    const std::string why =
        reason_of_e4m3(e4m3_problem(std::string("causal h2 s64 d64 descale_rows(64) ") + rest));
    EXPECT_NE(why.find(name), std::string::npos) << rest << ": " << why;
  }
}

TEST(Sm90E4m3, PlansTakeFactorsOfBlocksOfRows) {
  const Problem p = e4m3_problem("causal hq4 hk2 s515 d128 descale_rows(128)");
  const ForwardConfig unnamed = select_forward(p, kHopper90);
  EXPECT_TRUE(validate_config(unnamed, p, kHopper90));
  EXPECT_TRUE(unnamed.descale_blocks);
  EXPECT_TRUE(sm90_fits(p, kHopper90));
  const std::vector<ForwardConfig> all = sm90_candidates(p, kHopper90);
  EXPECT_EQ(asked_forward("target=cuda_sm90", p, kHopper90), all[0]);
  EXPECT_EQ(asked_forward(to_text(all.back()), p, kHopper90), all.back());
  const ForwardConfig small = asked_forward("target=cuda_sm90,block_k=64", p, kHopper90);
  EXPECT_TRUE(small.descale_blocks && small.block_k == 64);
}

// Of groups that are no power of two each head has its own tiles.
TEST(Sm90E4m3, HeadsOfAGroupThatAreAPowerOfTwoShareTiles) {
  const auto packed = [](const char* rest) {
    return select_forward(with_pack_gqa(e4m3_problem(rest)), kHopper90).pack_gqa;
  };
  EXPECT_EQ(packed("causal hq8 hk2 sq16 sk500 d64"), 4);
  EXPECT_EQ(packed("causal hq6 hk2 sq16 sk500 d64"), 1);
  EXPECT_EQ(packed("causal hq8 hk2 s4096 d64"), 1);
}

// Every tile that there is has registers and shared memory, at some dim, and is new.
TEST(Sm90E4m3, TilesAreThereForEveryDim) {
  for (const int d : {64, 96, 128, 192, 256}) {
    const Problem p{.dtype = DType::e4m3, .sq = 4096, .sk = 4096, .d = d, .dv = d};
    const auto priced = priced_sm90_tiles(p, 132);
    ASSERT_FALSE(priced.empty()) << d;
    EXPECT_EQ(priced[0].tile.block_q, select_forward(p, kHopper90).block_q);
    EXPECT_EQ(priced[0].tile.num_splits, 0);
    for (const ForwardConfig& config : sm90_candidates(p, kHopper90)) {
      EXPECT_LE(expected_e4m3_registers(config), config.query_registers());
      EXPECT_LE(config.smem_bytes(), kHopper90.smem_bytes);
    }
  }
}

}  // namespace
}  // namespace dfa
