#include "sensors/rapl/rapl.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "sensors/fakes.h"
#include "sensors/rapl/counter.h"
#include "temp_dir.h"

namespace dfa::sensors {
namespace {

using testing::FakeClock;
using testing::TempDir;

void add_zone(const TempDir& tree, const std::string& zone, const std::string& name,
              const std::string& microjoules, const std::string& range = "262143328850") {
  const std::string folder = "class/powercap/" + zone + "/";
  tree.write(folder + "name", name + "\n");
  tree.write(folder + "energy_uj", microjoules + "\n");
  tree.write(folder + "max_energy_range_uj", range + "\n");
}

TEST(Rapl, FindsPackagesAndTheirMemoryButNotWhatIsPartOfThem) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  add_zone(tree, "intel-rapl:0:0", "core", "1000");
  add_zone(tree, "intel-rapl:0:1", "dram", "1000");
  add_zone(tree, "intel-rapl:1", "package-1", "1000");
  add_zone(tree, "intel-rapl:2", "psys", "1000");
  add_zone(tree, "intel-rapl-mmio:0", "package-0", "1000");
  const MeterSet set = open_rapl(tree.path(), clock);
  ASSERT_EQ(set.meters.size(), 3u);
  EXPECT_EQ(set.meters[0]->name(), "rapl:package-0");
  EXPECT_EQ(set.meters[1]->name(), "rapl:package-0:dram");
  EXPECT_EQ(set.meters[2]->name(), "rapl:package-1");
  EXPECT_EQ(set.meters[0]->quantity(), Quantity::energy_j);
  EXPECT_TRUE(set.status);
}

TEST(Rapl, CountsJoulesSinceItWasOpenedWithTheClocksTime) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "5000000");
  const MeterSet set = open_rapl(tree.path(), clock);
  add_zone(tree, "intel-rapl:0", "package-0", "7500000");
  clock.now = 3;
  const auto reading = set.meters.at(0)->read();
  ASSERT_TRUE(reading);
  EXPECT_DOUBLE_EQ(reading->value, 2.5);
  EXPECT_DOUBLE_EQ(reading->time_s, 3);
}

TEST(Rapl, KeepsCountingOverSeveralWrapArounds) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "9000000", "10000000");
  const MeterSet set = open_rapl(tree.path(), clock);
  double last = 0;
  for (const char* raw : {"1000000", "9500000", "500000"}) {
    add_zone(tree, "intel-rapl:0", "package-0", raw, "10000000");
    last = set.meters.at(0)->read().value().value;
  }
  EXPECT_DOUBLE_EQ(last, 11.5);  // 9 → 11 → 19.5 → 20.5, minus 9
}

TEST(Rapl, RefusesToGuessAWrapAroundWithoutARange) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "9000000", "0");
  const MeterSet set = open_rapl(tree.path(), clock);
  add_zone(tree, "intel-rapl:0", "package-0", "1000000", "0");
  EXPECT_FALSE(set.meters.at(0)->read());
  EXPECT_NE(set.meters[0]->status().reason.find("max_energy_range_uj"), std::string::npos);
}

TEST(Rapl, SaysWhyWhereThereIsNoCounter) {
  TempDir tree;
  FakeClock clock;
  const MeterSet set = open_rapl(tree.path(), clock);
  EXPECT_TRUE(set.empty());
  EXPECT_FALSE(set.status);
  EXPECT_NE(set.status.reason.find("no energy counter"), std::string::npos);
}

TEST(Rapl, AnUnreadablePackageLeavesNoMeterAtAll) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  add_zone(tree, "intel-rapl:1", "package-1", "not a number");
  const MeterSet set = open_rapl(tree.path(), clock);
  EXPECT_TRUE(set.empty());
  EXPECT_NE(set.status.reason.find("not a number"), std::string::npos);
}

TEST(Rapl, PermissionDeniedIsAReason) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  std::filesystem::permissions(tree.path() / "class/powercap/intel-rapl:0/energy_uj",
                               std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);  // root may read everything
  }
  const MeterSet set = open_rapl(tree.path(), clock);
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_TRUE(set.empty());
  EXPECT_NE(set.status.reason.find("Permission denied"), std::string::npos) << set.status.reason;
}

TEST(Rapl, AReadThatFailsLaterIsNoReadingWithAReason) {
  TempDir tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  const MeterSet set = open_rapl(tree.path(), clock);
  std::filesystem::remove(tree.path() / "class/powercap/intel-rapl:0/energy_uj");
  EXPECT_FALSE(set.meters.at(0)->read());
  EXPECT_FALSE(set.meters[0]->status());
}

// Microjoules of 50 W in a counter that turns at 100 J, read every 10 ms from 0 to `seconds`.
TEST(TurningCounter, CountsOnHoweverOftenItTurns) {
  for (const double seconds : {1.0, 3.0, 5.0, 11.0}) {
    TurningCounter counter(100e6);
    EXPECT_LE(counter.longest_gap_s(), 0.01 + 1e-9);
    for (int i = 0; i <= std::lround(seconds * 100); ++i) {
      ASSERT_TRUE(counter.add(std::fmod(0.5e6 * i, 100e6), 0.01 * i)) << counter.break_reason();
    }
    EXPECT_NEAR(counter.joules(), 50 * seconds, 1e-6);
    EXPECT_EQ(counter.breaks(), 0);
  }
}

TEST(TurningCounter, WhatCannotBeToldIsABreakWithItsReason) {
  const auto reason = [](double range_uj, double from_uj, double to_uj, double seconds) {
    TurningCounter counter(range_uj);
    EXPECT_TRUE(counter.add(from_uj, 0));
    EXPECT_FALSE(counter.add(to_uj, seconds)) << from_uj << " to " << to_uj;
    EXPECT_EQ(counter.breaks(), 1);
    return counter.break_reason();
  };
  EXPECT_NE(reason(100e6, 10e6, 60e6, 0.5).find("turned over unseen"), std::string::npos);
  EXPECT_NE(reason(262e9, 55e6, 0, 0.1).find("started anew"), std::string::npos);
  EXPECT_NE(reason(262e9, 55e6, 62e9, 2).find("started anew"), std::string::npos);
  EXPECT_NE(reason(0, 55e6, 1e6, 0.1).find("no max_energy_range_uj"), std::string::npos);
  EXPECT_NE(reason(100e6, 90e6, 101e6, 0.1).find("beyond"), std::string::npos);
  EXPECT_NE(reason(262e9, 5e6, 5e6, 1.5).find("stands still"), std::string::npos);
}

}  // namespace
}  // namespace dfa::sensors
