#include "sensors/sampler.h"

#include <gtest/gtest.h>

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

TEST(Sampler, RefusesAPeriodOrRingOfNothing) {
  EXPECT_THROW(Sampler({}, 0, 1), InvalidArgument);
  EXPECT_THROW(Sampler({}, 1, 0), InvalidArgument);
}

}  // namespace
}  // namespace dfa::sensors
