#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/result.h"
#include "spec/config_text.h"
#include "spec/sm90_tiles.h"

// The prices that choose a tile of Hopper's forward, held against the joules that were measured.
namespace dfa::bench {
namespace {

constexpr double kPowerLimitW = 700;

// Measured by whole items in the table, and since in shares of the last round, which are planned
// (results/h200/hopper_shares.txt, 6).
constexpr const char* kInSharesSince = "fwd bf16 b1 hq8 hk8 sq32768 sk32768 d256";

TEST(TilePrices, AreTheJoulesOfTheTableInTheRepository) {
  const Result table = read_result(DFA_SOURCE_DIR "/results/h200/hopper_forward.json");
  std::vector<double> errors;
  for (const CaseResult& row : table.cases) {
    if (row.backend != "cuda") continue;
    const ForwardConfig c = parse_config(row.config, ForwardConfig{});
    const Sm90Tile tile{c.block_q, c.block_k,    c.stages,       c.q_stages,  c.pingpong,
                        c.cluster, c.own_output, c.held_columns, c.key_shares};
    const auto priced = priced_sm90_tiles(parse_problem(row.problem));
    const auto found =
        std::find_if(priced.begin(), priced.end(), [&](const auto& p) { return p.tile == tile; });
    ASSERT_NE(found, priced.end()) << row.problem;
    Sm90Tile planned = priced.front().tile;
    if (row.problem == kInSharesSince) planned.key_shares = 0;
    EXPECT_EQ(planned, tile) << row.problem << ": another tile is planned than was measured";
    const double measured_us = row.energy_j.value() / kPowerLimitW * 1e6;
    errors.push_back(std::abs(found->us / measured_us - 1));
    EXPECT_LT(errors.back(), 0.035) << row.problem;
  }
  ASSERT_EQ(errors.size(), 56u);
  std::nth_element(errors.begin(), errors.begin() + 50, errors.end());
  EXPECT_LT(errors[50], 0.02) << "of nine rows in ten";
}

}  // namespace
}  // namespace dfa::bench
