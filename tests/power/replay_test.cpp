#include "sensors/replay/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "power/governor.h"
#include "power/pacer.h"

// Readings recorded on a card, played to the governor as they came.
namespace dfa::power {
namespace {

class HandClock final : public Clock {
 public:
  double now_s() const override { return now; }
  void sleep_s(double seconds) override { now += seconds; }
  double now = 0;
};

std::vector<sensors::TraceColumn> recorded_power() {
  std::ifstream file(std::string(DFA_SOURCE_DIR) + "/tests/data/h200/step_response.csv");
  std::string line, csv = "time_s,nvml:power.power_w\n";
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::size_t first = line.find(','), second = line.find(',', first + 1);
    csv += line.substr(0, second) + "\n";
  }
  return sensors::parse_trace(csv);
}

TEST(Replay, TheRecordedStepIsSeenAndAnsweredAtItsFirstReading) {
  HandClock clock;
  const auto columns = recorded_power();
  const auto set = sensors::open_replay(columns, clock);
  ASSERT_EQ(set.meters.size(), 1u);
  dfa::power::Setup setup;
  setup.points = {{.label = "product", .time_s = 1e-3, .power_w = 690}};
  setup.idle_w = 125;
  setup.limit_w = 700;
  Pacer pacer;
  Governor governor(setup, {Goal::power_cap, 650}, {.power = set.meters[0].get()}, pacer);
  double lowered_s = 0;
  int readings = 0;
  for (; clock.now < 6.4; clock.now += 0.01) {
    const bool busy = clock.now > 1.0 && clock.now < 4.0;
    const auto made = governor.tick(clock.now, {.busy = busy});
    if (!made) continue;
    if (made->power_w) ++readings;
    ASSERT_TRUE(std::isfinite(made->level));
    ASSERT_GE(made->level, least_level(governor.setup().levers));
    ASSERT_LE(made->level, 1);
    if (lowered_s == 0 && made->power_w.value_or(0) > 800) lowered_s = clock.now;
  }
  EXPECT_NEAR(lowered_s, 1.1, 0.03);  // 824 W, the first reading of the load
  EXPECT_GT(readings, 50);
  // The record does not answer: the load goes on above the cap, so the level ends low.
  EXPECT_LT(governor.state().level, 0.5);
}

}  // namespace
}  // namespace dfa::power
