#include "monitor/sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/json_text.h"
#include "monitor/metrics.h"
#include "monitor/records.h"
#include "sensors/nvml_world.h"

namespace dfa::testing {
namespace {

using monitor::Budget;
using monitor::Look;
using monitor::Standing;
using monitor::Sum;
using sensors::Gauge;

const std::string kThree =
    "clock virtual\n"
    "card H200 GPU-aa 00000000:3B:00.0\npower constant 300\nnvlink 18 18 4e9 2e9\n"
    "card H200 GPU-bb 00000000:5E:00.0\npower constant 400\nlost 5 8\n"
    "card A,\"b\" GPU-cc 00000000:7E:00.0\npower constant 100\n";

TEST(Sum, IsOfAllCardsAndWhereOneIsLostSaysOfHowMany) {
  NvmlWorld world(kThree);
  monitor::Watch watch({}, world);
  world.sleep_s(4);
  Sum sum = monitor::sum_of(watch.look());
  EXPECT_EQ(sum.cards, 3);
  EXPECT_EQ(sum.power.said, 3);
  EXPECT_EQ(sum.power.missing, "");
  EXPECT_NEAR(sum.power.sum.value(), 800, 1e-6);
  EXPECT_NEAR(sum.energy.sum.value(), 4 * 800, 81);
  EXPECT_EQ(sum.breaks, 0);
  world.sleep_s(2);
  sum = monitor::sum_of(watch.look());
  EXPECT_EQ(sum.cards, 3);
  EXPECT_EQ(sum.power.said, 2);
  EXPECT_EQ(sum.energy.said, 2);
  EXPECT_NEAR(sum.power.sum.value(), 400, 1e-6);
  EXPECT_NE(sum.power.missing.find("GPU 1 (0000:5e:00.0): no sensor answers: "), std::string::npos);
  EXPECT_EQ(sum.breaks, 1);  // what the card used meanwhile is in no sum
}

TEST(Sum, OfNoneThatTellsIsEmptyAndNotZero) {
  NvmlWorld world(kThree + "mig 1\n");
  monitor::Watch watch({"GPU-cc"}, world);
  const Sum sum = monitor::sum_of(watch.look());
  EXPECT_EQ(sum.cards, 1);
  EXPECT_EQ(sum.power.said, 0);
  EXPECT_FALSE(sum.power.sum);
  EXPECT_NE(sum.power.missing.find("MIG"), std::string::npos);
}

Sum made(double watts, int said = 2, int cards = 2) {
  Sum sum;
  sum.cards = cards;
  sum.power = {watts, said, ""};
  return sum;
}

TEST(Budget, CountsTheTimeAboveItBetweenLooks) {
  Budget budget(1000);
  EXPECT_EQ(budget.look(10, made(1200)).above_s, 0);  // there is no time before the first
  EXPECT_EQ(budget.look(11, made(900)).standing, Standing::within);
  EXPECT_DOUBLE_EQ(budget.look(11.5, made(1100)).above_s, 0.5);
  const auto& state = budget.look(12.5, made(1001));
  EXPECT_EQ(state.standing, Standing::above);
  EXPECT_DOUBLE_EQ(state.over_w, 1);
  EXPECT_DOUBLE_EQ(state.above_s, 1.5);
  EXPECT_DOUBLE_EQ(state.watched_s, 2.5);
  EXPECT_DOUBLE_EQ(state.unknown_s, 0);
  EXPECT_DOUBLE_EQ(state.most_w, 1200);
  EXPECT_EQ(budget.look(13, made(1000)).standing, Standing::within);  // what it allows
}

TEST(Budget, WithACardThatIsSilentItIsAboveByTheOthersAloneOrNotKnown) {
  Budget budget(1000);
  budget.look(0, made(500));
  const auto& state = budget.look(1, made(999, 1));
  EXPECT_EQ(state.standing, Standing::unknown);
  EXPECT_DOUBLE_EQ(state.unknown_s, 1);
  EXPECT_EQ(budget.look(2, made(1001, 1)).standing, Standing::above);
  EXPECT_DOUBLE_EQ(state.above_s, 1);
  Sum none = made(0, 0);
  none.power.sum.reset();
  EXPECT_EQ(budget.look(3, none).standing, Standing::unknown);
}

TEST(Budget, WhatIsLongerAgoThanAMeanReachesIsNotKnown) {
  Budget budget(1000);
  budget.look(0, made(1500));
  const auto& state = budget.look(10, made(1500));
  EXPECT_DOUBLE_EQ(state.above_s, 1.5);
  EXPECT_DOUBLE_EQ(state.unknown_s, 8.5);
  EXPECT_DOUBLE_EQ(state.watched_s, 10);
}

TEST(Budget, IsWattsAboveZero) {
  for (const double bad : {0.0, -5.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(Budget{bad}, InvalidArgument) << bad;
  }
}

// The third look: the second card is lost since the one before.
Look with_one_lost(NvmlWorld& world) {
  monitor::Watch watch({}, world);
  Budget budget(600);
  Look look;
  for (const double time_s : {0.0, 4.0, 5.5}) {
    world.sleep_s(time_s - look.time_s);
    look.time_s = time_s;
    look.cards = watch.look();
    look.sum = monitor::sum_of(look.cards);
    look.budget = budget.look(time_s, look.sum);
  }
  return look;
}

TEST(Records, JsonHasEachCardTheSumAndTheBudget) {
  NvmlWorld world(kThree);
  const Json json = parse_json(to_json_line(with_one_lost(world)));
  EXPECT_EQ(json["time_s"], 5.5);
  ASSERT_EQ(json["cards"].size(), 3u);
  EXPECT_EQ(json["cards"][0]["power_average_w"], 300);
  EXPECT_TRUE(json["cards"][0]["lost"].is_null());
  EXPECT_NEAR(json["cards"][0]["nvlink_sent_bytes"].get<double>(), 5.5 * 4e9, 1024);
  EXPECT_NEAR(json["cards"][0]["nvlink_received_bytes_per_s"].get<double>(), 2e9, 4096);
  EXPECT_TRUE(json["cards"][1]["power_average_w"].is_null());
  EXPECT_NE(json["cards"][1]["lost"].get<std::string>().find("the GPU is lost"), std::string::npos);
  EXPECT_TRUE(json["cards"][2]["nvlink_sent_bytes"].is_null());
  EXPECT_TRUE(json["cards"][2]["missing"].contains("nvml:nvlink_sent"));
  EXPECT_EQ(json["sum"]["cards"], 3);
  EXPECT_EQ(json["sum"]["power_cards"], 2);
  EXPECT_EQ(json["sum"]["power_average_w"], 400);
  EXPECT_EQ(json["budget"]["standing"], "unknown");
  EXPECT_EQ(json["budget"]["above_s"], 1.5);  // of the four seconds of 800 W the last look's reach
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool inside = false;
  for (const char c : line) {
    if (c == '"') {
      inside = !inside;
    } else if (c == ',' && !inside) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

TEST(Records, CsvHasALineACardAndOneOfTheSumUnderOneHead) {
  NvmlWorld world(kThree);
  std::istringstream lines(monitor::csv_head() + to_csv_lines(with_one_lost(world)));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(cells_of(line));
  ASSERT_EQ(rows.size(), 5u);
  for (const auto& row : rows) EXPECT_EQ(row.size(), rows[0].size());
  const auto cell = [&](std::size_t row, const std::string& name) {
    const auto at = std::find(rows[0].begin(), rows[0].end(), name);
    return at == rows[0].end() ? "no such column"
                               : rows[row][static_cast<std::size_t>(at - rows[0].begin())];
  };
  EXPECT_EQ(cell(1, "power_average_w"), "300");
  EXPECT_EQ(cell(2, "power_average_w"), "");
  EXPECT_NE(cell(2, "lost").find("the GPU is lost"), std::string::npos);
  EXPECT_EQ(cell(4, "card"), "sum");
  EXPECT_EQ(cell(4, "power_average_w"), "400");
  EXPECT_EQ(cell(4, "cards"), "3");
  EXPECT_EQ(cell(4, "power_cards"), "2");
  EXPECT_EQ(cell(4, "energy_cards"), "2");
  EXPECT_EQ(cell(4, "standing"), "unknown");
  EXPECT_EQ(cell(4, "above_s"), "1.5");
}

// What was used around a break is in no sum, of whatever counter.
TEST(Records, CountersThatBrokeOffAreTold) {
  NvmlWorld world(kThree);
  Look look = with_one_lost(world);
  look.cards[0].growth[Gauge::nvlink_sent].breaks = 2;
  look.cards[0].growth[Gauge::nvlink_sent].break_reason = "it fell back";
  look.sum.breaks = 3;
  const Json json = parse_json(to_json_line(look));
  EXPECT_EQ(json["cards"][0]["breaks"],
            (Json{{"nvml:nvlink_sent", {{"count", 2}, {"reason", "it fell back"}}}}));
  EXPECT_TRUE(json["cards"][2]["breaks"].empty());
  const std::string head = monitor::csv_head(), sum = to_csv_lines(look);
  EXPECT_NE(head.find("energy_cards,energy_breaks,budget_w"), std::string::npos) << head;
  EXPECT_NE(sum.find(",3,2,2,3,600,"), std::string::npos) << sum;
}

TEST(Records, WithoutABudgetItIsNullAndTheColumnsStay) {
  NvmlWorld world(kThree);
  Look look = with_one_lost(world);
  look.budget.reset();
  EXPECT_TRUE(parse_json(to_json_line(look))["budget"].is_null());
  std::istringstream lines(monitor::csv_head() + to_csv_lines(look));
  std::string head, line;
  std::getline(lines, head);
  while (std::getline(lines, line)) EXPECT_EQ(cells_of(line).size(), cells_of(head).size()) << line;
}

TEST(Metrics, OfTheSumAreASeriesOfTheirOwnWhereACardIsSilent) {
  NvmlWorld world(kThree);
  const Look look = with_one_lost(world);
  const std::string text = monitor::to_metrics(look.sum, look.budget, "box");
  for (const char* line : {"dfa_sum_power_watts{Hostname=\"box\",cards=\"2\",of=\"3\"} 400\n",
                           "dfa_budget_watts{Hostname=\"box\"} 600\n",
                           "dfa_budget_above_seconds{Hostname=\"box\"} 1.5\n",
                           "dfa_budget_unknown_seconds{Hostname=\"box\"} 4\n",
                           "dfa_budget_watched_seconds{Hostname=\"box\"} 5.5\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(monitor::to_metrics(look.sum, {}, "box").find("budget"), std::string::npos);
}

TEST(Watch, BytesOverNvlinkAreASumAndARateOverHalfASecond) {
  NvmlWorld world(kThree);
  monitor::Watch watch({"GPU-aa"}, world);
  EXPECT_FALSE(rate_of(watch.look()[0], Gauge::nvlink_sent));
  world.sleep_s(0.2);
  EXPECT_FALSE(rate_of(watch.look()[0], Gauge::nvlink_sent));  // too short to tell
  world.sleep_s(0.8);
  const auto card = watch.look()[0];
  EXPECT_NEAR(rate_of(card, Gauge::nvlink_sent).value(), 4e9, 4096);
  EXPECT_NEAR(growth_of(card, Gauge::nvlink_received).value(), 2e9, 4096);
  const std::string text = monitor::to_metrics(std::vector{card}, "box");
  EXPECT_NE(text.find("# TYPE dfa_nvlink_sent_bytes counter"), std::string::npos);
  EXPECT_NE(text.find("DCGM_FI_PROF_NVLINK_TX_BYTES{gpu=\"0\""), std::string::npos);
}

}  // namespace
}  // namespace dfa::testing
