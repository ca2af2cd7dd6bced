#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/result.h"
#include "plan/select.h"
#include "spec/config_text.h"
#include "spec/limits.h"

// The prices that choose a tile of Hopper's forward, held against the joules that were measured.
namespace dfa::bench {
namespace {

constexpr double kPowerLimitW = 700;

std::vector<CaseResult> ours(const char* file) {
  std::vector<CaseResult> rows =
      read_result(std::string(DFA_SOURCE_DIR "/results/tables/") + file).cases;
  std::erase_if(rows, [](const CaseResult& row) { return row.backend != "cuda"; });
  return rows;
}

// The table's rows, those that were measured again in another tile as that file has them.
std::vector<CaseResult> measured_rows() {
  std::vector<CaseResult> rows = ours("hopper_forward_h200.json");
  for (const CaseResult& again : ours("hopper_last_round_h200.json")) {
    for (CaseResult& row : rows) {
      if (row.problem == again.problem) row = again;
    }
  }
  return rows;
}

TEST(TilePrices, AreTheJoulesOfTheTableInTheRepository) {
  std::vector<double> errors;
  for (const CaseResult& row : measured_rows()) {
    const ForwardConfig c = parse_config(row.config, ForwardConfig{});
    const Sm90Tile tile{c.block_q, c.block_k,           c.stages,    c.q_stages, c.pingpong,
                        c.cluster, c.q_columns_in_regs, c.num_splits};
    const auto priced = priced_sm90_tiles(parse_problem(row.problem), kUsualMultiprocessors);
    const auto found =
        std::find_if(priced.begin(), priced.end(), [&](const auto& p) { return p.tile == tile; });
    ASSERT_NE(found, priced.end()) << row.problem;
    EXPECT_EQ(found, priced.begin())
        << row.problem << ": another tile is planned than was measured";
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
