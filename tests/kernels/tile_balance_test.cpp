#include "kernels/tile_balance.h"

#include <gtest/gtest.h>

#include <string>

#include "dfa/problem.h"

namespace dfa {
namespace {

constexpr int kBlocks = 132;

struct Dealt {
  TileGrid tile_grid;
  double balance;
};

Dealt dealt(TileGrid (*how)(const Problem&, const ForwardConfig&, int), const std::string& line,
            const ForwardConfig& config, int blocks = kBlocks) {
  const Problem p = parse_problem(line);
  const TileGrid tile_grid = how(p, config, blocks);
  return {tile_grid, balance(tile_grid, forward_tile_costs(p, config), blocks / config.cluster)};
}

TEST(TileBalance, AnItemCostsTheTilesThatItsQueriesSee) {
  const ForwardConfig config{.block_q = 128, .block_k = 64};
  const auto full = forward_tile_costs(parse_problem("fwd bf16 h1 s300 d64"), config);
  ASSERT_EQ(full.size(), 3u);
  EXPECT_EQ(full[0], full[2]);
  const auto causal = forward_tile_costs(parse_problem("fwd bf16 causal h1 s300 d64"), config);
  EXPECT_EQ(causal[1] - causal[0], 2);  // 128 keys more
  EXPECT_EQ(causal[2] - causal[1], 1);  // 300 - 256 more
  EXPECT_EQ(causal[2], full[2]);
}

TEST(TileBalance, IsOneWhereAllWorkTheSame) {
  const std::vector<double> costs{3, 3};
  EXPECT_DOUBLE_EQ(balance({66, 2, 66, 1}, costs, kBlocks), 1);
  EXPECT_DOUBLE_EQ(balance({33, 2, 33, 1}, costs, kBlocks), 0.5);
}

// 21 heads of which five fit the L2: the last section has one head, whose 86 tiles leave 46 blocks
// without any.
TEST(TileBalance, HeadsThatDoNotFillTheirLastSectionAreDealtOutInOthers) {
  const ForwardConfig config{.block_q = 192, .block_k = 64};
  for (const char* line :
       {"fwd bf16 causal b1 h21 s16384 d96", "fwd bf16 causal b2 h21 s8192 d96"}) {
    const Dealt before = dealt(&forward_tile_grid, line, config);
    const Dealt after = dealt(&balanced_tile_grid, line, config);
    EXPECT_LT(before.balance, 0.87) << line;
    EXPECT_GT(after.balance, 0.99) << line;
    EXPECT_NE(after.tile_grid.section, before.tile_grid.section) << line;
    EXPECT_GE(after.tile_grid.section, before.tile_grid.section / 2) << line;
    EXPECT_LE(after.tile_grid.section, before.tile_grid.section * 5 / 4) << line;
  }
}

// 128 heads of which 32 fit the L2, 16 tiles each: every section leaves 16 blocks without a work
// tile.
TEST(TileBalance, SectionsAreShiftedSoThatNotTheSameBlocksWait) {
  const ForwardConfig config{.block_q = 128, .block_k = 64};
  const std::string line = "fwd bf16 causal b8 h16 s2048 d128";
  const Dealt before = dealt(&forward_tile_grid, line, config);
  const Dealt after = dealt(&balanced_tile_grid, line, config);
  EXPECT_LT(before.balance, 0.975);
  EXPECT_GT(after.balance, 0.995);
  EXPECT_EQ(after.tile_grid.section, 32);
  EXPECT_GT(after.tile_grid.shift, 0);
  EXPECT_LT(after.tile_grid.shift, kBlocks);
}

TEST(TileBalance, WhatIsBalancedStaysAsItIs) {
  const ForwardConfig config{.block_q = 128, .block_k = 128};
  for (const char* line :
       {"fwd bf16 causal b4 h16 s4096 d128", "fwd bf16 causal b1 h16 s16384 d128",
        "fwd bf16 b1 h21 s16384 d96", "fwd bf16 causal b128 h64 s1024 d128"}) {
    EXPECT_EQ(dealt(&balanced_tile_grid, line, config).tile_grid.section,
              dealt(&forward_tile_grid, line, config).tile_grid.section)
        << line;
  }
}

TEST(TileBalance, IsNeverWorseThanBefore) {
  for (const int cluster : {1, 2}) {
    for (const int heads : {3, 12, 21, 25, 40}) {
      for (const char* length : {"512", "2000", "4096", "16384"}) {
        const ForwardConfig config{.block_q = 128, .block_k = 128, .cluster = cluster};
        const std::string line =
            "fwd bf16 causal h" + std::to_string(heads) + " s" + length + " d128";
        for (const int blocks : {kBlocks, 100}) {
          const Dealt before = dealt(&forward_tile_grid, line, config, blocks);
          const Dealt after = dealt(&balanced_tile_grid, line, config, blocks);
          EXPECT_GE(after.balance, before.balance) << line << " " << blocks;
          if (after.tile_grid.section != before.tile_grid.section) {
            EXPECT_GT(after.balance, before.balance + 0.01) << line << " " << blocks;
            EXPECT_EQ(after.tile_grid.shift, 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dfa
