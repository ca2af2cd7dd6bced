#include "sensors/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "sensors/fakes.h"

namespace dfa::sensors {
namespace {

using testing::FakeMeter;

TEST(Sampler, KeepsReadingsInOrderWithTheirMeter) {
  FakeMeter power(Quantity::power_w), heat(Quantity::temp_c);
  power.script = {{1, 100}, {2, 101}};
  heat.script = {{1, 40}};  // then it fails: no sample
  Sampler sampler({&power, &heat}, 1, 10);
  sampler.sample_once();
  sampler.sample_once();
  const auto samples = sampler.drain();
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].meter, 0u);
  EXPECT_EQ(samples[1].meter, 1u);
  EXPECT_DOUBLE_EQ(samples[2].reading.value, 101);
  EXPECT_TRUE(sampler.drain().empty());
  EXPECT_EQ(sampler.dropped(), 0u);
}

TEST(Sampler, AFullRingDropsTheOldestAndCountsIt) {
  FakeMeter power(Quantity::power_w);
  for (int i = 0; i < 5; ++i) power.script.push_back({1.0 * i, 100.0 + i});
  Sampler sampler({&power}, 1, 2);
  for (int i = 0; i < 5; ++i) sampler.sample_once();
  const auto samples = sampler.drain();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_DOUBLE_EQ(samples[0].reading.value, 103);
  EXPECT_DOUBLE_EQ(samples[1].reading.value, 104);
  EXPECT_EQ(sampler.dropped(), 3u);
}

TEST(Sampler, TheThreadReadsUntilItIsStoppedAndNotAfter) {
  FakeMeter power(Quantity::power_w);
  for (int i = 0; i < 100000; ++i) power.script.push_back({1.0 * i, 1});
  Sampler sampler({&power}, 1e-3, 64);
  sampler.start();
  sampler.start();
  while (sampler.drain().size() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  sampler.stop();
  const int reads = power.reads;
  EXPECT_GE(reads, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(power.reads, reads);
}

TEST(Sampler, StopsAtOnceHoweverLongThePeriod) {
  FakeMeter power(Quantity::power_w);
  const auto begin = std::chrono::steady_clock::now();
  {
    Sampler sampler({&power}, 3600, 4);
    sampler.start();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Sampler, RefusesAPeriodOrRingOrShareOfNothing) {
  EXPECT_THROW(Sampler({}, 0, 1), InvalidArgument);
  EXPECT_THROW(Sampler({}, 1, 0), InvalidArgument);
  EXPECT_THROW(Sampler({}, 1, 1, 0), InvalidArgument);
}

// A meter whose reads take a while.
class SlowMeter final : public Meter {
 public:
  std::string name() const override { return "slow"; }
  Quantity quantity() const override { return Quantity::energy_j; }
  double period_s() const override { return 0.1; }
  Verdict status() const override { return Verdict::yes(); }
  std::optional<Reading> read() override {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    longest_s = std::max(longest_s, took.count());
    return Reading{0, ++reads};
  }
  double reads = 0;
  double longest_s = 0;
};

ReadingCost cost_of(Meter& meter, double share, int milliseconds, int rounds = 0) {
  Sampler sampler({&meter}, 1e-3, 64, share);
  sampler.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  while (sampler.cost().rounds < rounds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  sampler.stop();
  return sampler.cost();
}

TEST(Sampler, ReadsASlowMeterLessOftenSoThatReadingKeepsToItsShare) {
  SlowMeter slow;
  const ReadingCost cost = cost_of(slow, 0.1, 200, 3);
  EXPECT_EQ(cost.rounds, slow.reads);
  EXPECT_GE(cost.read_s, 2e-3 * cost.rounds);
  EXPECT_GE(cost.wall_s, 0.2);
  constexpr double kAfterTheRead = 5e-3;  // of a busy machine
  EXPECT_LE(cost.read_s, 0.1 * cost.wall_s + slow.longest_s + kAfterTheRead);
}

TEST(Sampler, WithLeaveToReadAllTheTimeItKeepsToThePeriod) {
  SlowMeter slow;
  EXPECT_GE(cost_of(slow, 1e9, 200).rounds, 3);
}

TEST(Sampler, AShareOfAThousandthLeavesRoomForOneSlowReadInASecondOrTwo) {
  SlowMeter slow;
  EXPECT_EQ(cost_of(slow, Sampler::kMaxShare, 200).rounds, 1);
}

TEST(Sampler, CostStandsStillOnceItIsStopped) {
  FakeMeter power(Quantity::power_w);
  Sampler sampler({&power}, 1e-3, 64);
  EXPECT_EQ(sampler.cost().share(), 0);
  sampler.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  sampler.stop();
  const double wall_s = sampler.cost().wall_s;
  EXPECT_GE(wall_s, 0.01);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(sampler.cost().wall_s, wall_s);
}

}  // namespace
}  // namespace dfa::sensors
