#include "sensors/rapl/rapl.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "sensors/fakes.h"

namespace dfa::sensors {
namespace {

using testing::FakeClock;
using testing::FakeTree;

void add_zone(const FakeTree& tree, const std::string& zone, const std::string& name,
              const std::string& microjoules, const std::string& range = "262143328850") {
  const std::string folder = "class/powercap/" + zone + "/";
  tree.write(folder + "name", name + "\n");
  tree.write(folder + "energy_uj", microjoules + "\n");
  tree.write(folder + "max_energy_range_uj", range + "\n");
}

TEST(Rapl, FindsPackagesAndTheirMemoryButNotWhatIsPartOfThem) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  add_zone(tree, "intel-rapl:0:0", "core", "1000");
  add_zone(tree, "intel-rapl:0:1", "dram", "1000");
  add_zone(tree, "intel-rapl:1", "package-1", "1000");
  add_zone(tree, "intel-rapl:2", "psys", "1000");
  add_zone(tree, "intel-rapl-mmio:0", "package-0", "1000");
  const MeterSet set = open_rapl(tree.root(), clock);
  ASSERT_EQ(set.meters.size(), 3u);
  EXPECT_EQ(set.meters[0]->name(), "rapl:package-0");
  EXPECT_EQ(set.meters[1]->name(), "rapl:package-0:dram");
  EXPECT_EQ(set.meters[2]->name(), "rapl:package-1");
  EXPECT_EQ(set.meters[0]->quantity(), Quantity::energy_j);
  EXPECT_TRUE(set.status);
}

TEST(Rapl, CountsJoulesSinceItWasOpenedWithTheClocksTime) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "5000000");
  const MeterSet set = open_rapl(tree.root(), clock);
  add_zone(tree, "intel-rapl:0", "package-0", "7500000");
  clock.now = 3;
  const auto reading = set.meters.at(0)->read();
  ASSERT_TRUE(reading);
  EXPECT_DOUBLE_EQ(reading->value, 2.5);
  EXPECT_DOUBLE_EQ(reading->time_s, 3);
}

TEST(Rapl, KeepsCountingOverSeveralWrapArounds) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "9000000", "10000000");
  const MeterSet set = open_rapl(tree.root(), clock);
  double last = 0;
  for (const char* raw : {"1000000", "9500000", "500000"}) {
    add_zone(tree, "intel-rapl:0", "package-0", raw, "10000000");
    last = set.meters.at(0)->read().value().value;
  }
  EXPECT_DOUBLE_EQ(last, 11.5);  // 9 → 11 → 19.5 → 20.5, minus 9
}

TEST(Rapl, RefusesToGuessAWrapAroundWithoutARange) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "9000000", "0");
  const MeterSet set = open_rapl(tree.root(), clock);
  add_zone(tree, "intel-rapl:0", "package-0", "1000000", "0");
  EXPECT_FALSE(set.meters.at(0)->read());
  EXPECT_NE(set.meters[0]->status().reason.find("max_energy_range_uj"), std::string::npos);
}

TEST(Rapl, SaysWhyWhereThereIsNoCounter) {
  FakeTree tree;
  FakeClock clock;
  const MeterSet set = open_rapl(tree.root(), clock);
  EXPECT_TRUE(set.empty());
  EXPECT_FALSE(set.status);
  EXPECT_NE(set.status.reason.find("no energy counter"), std::string::npos);
}

TEST(Rapl, AnUnreadablePackageLeavesNoMeterAtAll) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  add_zone(tree, "intel-rapl:1", "package-1", "not a number");
  const MeterSet set = open_rapl(tree.root(), clock);
  EXPECT_TRUE(set.empty());
  EXPECT_NE(set.status.reason.find("not a number"), std::string::npos);
}

TEST(Rapl, PermissionDeniedIsAReason) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  std::filesystem::permissions(tree.root() / "class/powercap/intel-rapl:0/energy_uj",
                               std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);  // root may read everything
  }
  const MeterSet set = open_rapl(tree.root(), clock);
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_TRUE(set.empty());
  EXPECT_NE(set.status.reason.find("Permission denied"), std::string::npos) << set.status.reason;
}

TEST(Rapl, AReadThatFailsLaterIsNoReadingWithAReason) {
  FakeTree tree;
  FakeClock clock;
  add_zone(tree, "intel-rapl:0", "package-0", "1000");
  const MeterSet set = open_rapl(tree.root(), clock);
  std::filesystem::remove(tree.root() / "class/powercap/intel-rapl:0/energy_uj");
  EXPECT_FALSE(set.meters.at(0)->read());
  EXPECT_FALSE(set.meters[0]->status());
}

}  // namespace
}  // namespace dfa::sensors
