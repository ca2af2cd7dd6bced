#include "sensors/energy_window.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "sensors/fakes.h"
#include "sensors/rapl/rapl.h"
#include "sensors/replay/replay.h"
#include "temp_dir.h"

namespace dfa::sensors {
namespace {

using testing::FakeClock;
using testing::FakeMeter;

TEST(EnergyWindow, SumsTheCountersAndOwnsUpToOnePeriodAtEachEnd) {
  FakeMeter package(Quantity::energy_j, 0.1), memory(Quantity::energy_j, 0.01);
  package.script = {{0, 1000}, {10, 3000}};  // 200 W
  memory.script = {{0, 50}, {10, 150}};      // 10 W
  EnergyWindow window({&package, &memory});
  window.begin();
  const Energy energy = window.end();
  ASSERT_TRUE(energy.energy_j);
  EXPECT_DOUBLE_EQ(*energy.energy_j, 2100);
  EXPECT_DOUBLE_EQ(energy.seconds, 10);
  EXPECT_DOUBLE_EQ(energy.uncertainty_j, 2 * 0.1 * 200 + 2 * 0.01 * 10);
}

TEST(EnergyWindow, MeasuresAReplayedTraceBetweenTwoMarks) {
  FakeClock clock;
  const MeterSet set =
      open_replay(parse_trace("time_s,p.energy_j\n0,0\n1,50\n2,100\n3,400\n4,700\n"), clock);
  EnergyWindow window({set.meters[0].get()});
  clock.now = 2.3;
  window.begin();
  clock.now = 4.3;
  const Energy energy = window.end();
  EXPECT_DOUBLE_EQ(energy.energy_j.value(), 600);
  EXPECT_DOUBLE_EQ(energy.seconds, 2);
  EXPECT_DOUBLE_EQ(energy.uncertainty_j, 600);
}

TEST(EnergyWindow, NothingMeasuredIsNoNumberButAReason) {
  EXPECT_FALSE(EnergyWindow({}).end().energy_j);
  FakeMeter counter(Quantity::energy_j);
  EnergyWindow window({&counter});
  EXPECT_EQ(window.end().reason, "the window was not begun");
  counter.script = {{0, 10}};
  window.begin();
  EXPECT_NE(window.end().reason.find("the script is over"), std::string::npos);
  counter.script = {{1, 10}, {1, 10}};
  window.begin();
  EXPECT_NE(window.end().reason.find("did not move"), std::string::npos);
}

TEST(EnergyWindow, ACounterThatBrokeOffInBetweenIsNoEnergy) {
  FakeMeter counter(Quantity::energy_j);
  counter.script = {{0, 10, 0}, {5, 900, 1}};
  EnergyWindow window({&counter});
  window.begin();
  EXPECT_FALSE(window.end().energy_j);
}

// Another meter, and who reads it.
class WatchedMeter final : public Meter {
 public:
  explicit WatchedMeter(Meter& meter) : meter_(meter) {}
  std::string name() const override { return meter_.name(); }
  Quantity quantity() const override { return meter_.quantity(); }
  double period_s() const override { return meter_.period_s(); }
  double longest_gap_s() const override { return meter_.longest_gap_s(); }
  std::string break_reason() const override { return meter_.break_reason(); }
  Verdict status() const override { return meter_.status(); }
  std::optional<Reading> read() override {
    if (std::this_thread::get_id() != made_by_) ++by_others;
    return meter_.read();
  }
  std::atomic<int> by_others = 0;

 private:
  Meter& meter_;
  const std::thread::id made_by_ = std::this_thread::get_id();
};

TEST(EnergyWindow, ItsThreadAndOthersReadAtOnceAndNoJouleIsLostOrCountedTwice) {
  const testing::TempDir tree;
  FakeClock clock;
  const std::string zone = "class/powercap/intel-rapl:0/";
  tree.write(zone + "name", "package-0\n");
  tree.write(zone + "energy_uj", "0\n");
  tree.write(zone + "max_energy_range_uj", "10000000\n");
  const MeterSet set = open_rapl(tree.path(), clock);
  ASSERT_FALSE(set.empty()) << set.status.reason;
  Meter& counter = *set.meters[0];
  WatchedMeter watched(counter);
  EnergyWindow window({&watched});
  for (int i = 0; i < 3; ++i) {
    window.begin();
    std::atomic<bool> done = false;
    std::vector<std::jthread> others;
    for (int t = 0; t < 2; ++t) {
      others.emplace_back([&] {
        while (!done) {
          if (!counter.read()) static_cast<void>(counter.status().reason + counter.break_reason());
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      });
    }
    // 50 W, so that it turns every 0.2 s: 20 steps, each of which somebody reads.
    const int before = watched.by_others;
    std::int64_t steps = 0;
    const auto enough = [&] { return steps >= 100 && watched.by_others - before >= 5; };
    for (; !enough() && steps < 100000; ++steps) {
      tree.write(zone + "new", std::to_string((steps + 1) * 500000 % 10000000) + "\n");
      std::filesystem::rename(tree.path() / (zone + "new"), tree.path() / (zone + "energy_uj"));
      clock.sleep_s(0.01);
      counter.read();
    }
    done = true;
    others.clear();
    EXPECT_TRUE(enough());
    const Energy energy = window.end();
    ASSERT_TRUE(energy.energy_j) << energy.reason;
    EXPECT_NEAR(*energy.energy_j, 0.5 * static_cast<double>(steps), 1e-6);
    const int until = watched.by_others;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));  // more than two of its periods
    EXPECT_EQ(watched.by_others, until);                         // its thread has ended
    tree.write(zone + "energy_uj", "0\n");
    counter.read();
  }
}

TEST(EnergyWindow, RefusesAMeterThatIsNoCounter) {
  FakeMeter power(Quantity::power_w);
  EXPECT_THROW(EnergyWindow({&power}), InvalidArgument);
}

}  // namespace
}  // namespace dfa::sensors
