#include "sensors/replay/replay.h"

#include <gtest/gtest.h>

#include "sensors/fakes.h"

namespace dfa::sensors {
namespace {

using testing::FakeClock;

constexpr const char* kTrace =
    "time_s,rapl:package-0.energy_j,cpu.temp_c\n"
    "0.5,10,40\n"
    "1,12.5,\n"
    "1.5,15,42\n";

TEST(Replay, PlaysTheLastValueAtOrBeforeNow) {
  FakeClock clock;
  clock.now = 100;
  const MeterSet set = open_replay(parse_trace(kTrace), clock);
  ASSERT_EQ(set.meters.size(), 2u);
  Meter& energy = *set.meters[0];
  EXPECT_EQ(energy.name(), "rapl:package-0");
  EXPECT_EQ(energy.quantity(), Quantity::energy_j);
  EXPECT_DOUBLE_EQ(energy.period_s(), 0.5);
  EXPECT_FALSE(energy.read());
  EXPECT_NE(energy.status().reason.find("no value yet"), std::string::npos);
  clock.now = 101.2;
  EXPECT_DOUBLE_EQ(energy.read().value().value, 12.5);
  EXPECT_DOUBLE_EQ(energy.read().value().time_s, 101);
  EXPECT_DOUBLE_EQ(set.meters[1]->read().value().value, 40);  // its cell at 1 s is empty
  EXPECT_TRUE(energy.status());
}

TEST(Replay, EndsOnePeriodAfterTheLastValue) {
  FakeClock clock;
  const MeterSet set = open_replay(parse_trace(kTrace), clock);
  clock.now = 1.9;
  EXPECT_DOUBLE_EQ(set.meters[0]->read().value().value, 15);
  clock.now = 2.1;
  EXPECT_FALSE(set.meters[0]->read());
  EXPECT_NE(set.meters[0]->status().reason.find("ended at 1.5 s"), std::string::npos);
}

TEST(Replay, WhatIsWrittenIsReadBack) {
  const auto columns = parse_trace(kTrace);
  EXPECT_EQ(to_csv(columns), kTrace);
}

struct BadTrace {
  const char* csv;
  const char* says;
};

TEST(Replay, BadTracesNameLineAndCell) {
  const BadTrace traces[] = {
      {"", "first line"},
      {"time_s\n", "first line"},
      {"time_s,cpu.joule\n", "'cpu.joule'"},
      {"time_s,.power_w\n", "'.power_w'"},
      {"time_s,a.power_w\n1\n", "line 2: 1 cells"},
      {"time_s,a.power_w\n1,x\n", "line 2: 'x'"},
      {"time_s,a.power_w\n1,nan\n", "line 2: 'nan'"},
      {"time_s,a.power_w\n2,1\n1,1\n", "line 3: time 1 s is before 2 s"},
  };
  for (const BadTrace& trace : traces) {
    try {
      parse_trace(trace.csv);
      ADD_FAILURE() << "accepted: " << trace.csv;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(trace.says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace dfa::sensors
