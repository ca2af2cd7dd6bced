#include "bench/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bench/interleave.h"
#include "dfa/error.h"
#include "sensors/fakes.h"

namespace dfa::bench {
namespace {

using dfa::testing::FakeClock;

Variant taking(FakeClock& clock, const std::string& name, double seconds, std::string* log = {}) {
  return {name, [&clock, name, seconds, log] {
            clock.now += seconds;
            if (log != nullptr) *log += name;
          }};
}

TEST(StoppingRule, ASteadyVariantEndsWhenItsIntervalIsNarrow) {
  FakeClock clock;
  MeasureOptions options;
  options.stopping.budget_s = 1e9;
  const auto measured = measure({taking(clock, "a", 0.25)}, options, clock);
  EXPECT_EQ(measured[0].samples.size(), 10u);  // no spread: as soon as ten are there
  EXPECT_DOUBLE_EQ(measured[0].samples[0].duration_s, 0.25);
}

TEST(StoppingRule, ANoisyVariantEndsWithItsBudget) {
  FakeClock clock;
  MeasureOptions options;
  options.stopping.budget_s = 30;
  int run = 0;
  const Variant noisy{"noisy", [&] { clock.now += ++run % 2 == 0 ? 1.0 : 0.5; }};
  const auto measured = measure({noisy}, options, clock);
  EXPECT_EQ(measured[0].samples.size(), 40u);  // 0.75 s on average
}

TEST(StoppingRule, ASlowVariantGetsItsLeastSamplesWhateverTheyCost) {
  FakeClock clock;
  MeasureOptions options;
  options.stopping.budget_s = 1;
  const auto measured = measure({taking(clock, "slow", 100)}, options, clock);
  EXPECT_EQ(measured[0].samples.size(), 3u);
}

TEST(StoppingRule, SamplesAreBounded) {
  FakeClock clock;
  MeasureOptions options;
  options.stopping.budget_s = 1e9;
  options.stopping.max_samples = 50;
  int run = 0;
  const Variant noisy{"noisy", [&] { clock.now += ++run % 2 == 0 ? 1.0 : 0.1; }};
  EXPECT_EQ(measure({noisy}, options, clock)[0].samples.size(), 50u);
}

TEST(Interleave, EveryRoundVisitsEveryVariantOnceInAnOrderOfTheSeed) {
  bool differs = false;
  for (std::uint64_t round = 0; round < 20; ++round) {
    auto order = round_order(5, 7, round);
    EXPECT_EQ(order, round_order(5, 7, round));
    differs = differs || order != round_order(5, 8, round);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  }
  EXPECT_TRUE(differs);
}

TEST(Interleave, EveryVariantIsFirstAboutEquallyOften) {
  int first[3] = {};
  for (std::uint64_t round = 0; round < 3000; ++round) ++first[round_order(3, 1, round)[0]];
  for (const int count : first) EXPECT_NEAR(count, 1000, 120);
}

TEST(Runner, WarmsUpThenTakesTurnsInAnOrderOfTheSeed) {
  const auto order_of = [](std::uint64_t seed, bool interleave) {
    FakeClock clock;
    std::string log;
    MeasureOptions options{.interleave = interleave, .seed = seed};
    options.stopping.budget_s = 6;
    options.stopping.confident_samples = 100;
    measure({taking(clock, "a", 1, &log), taking(clock, "b", 1, &log)}, options, clock);
    return log;
  };
  EXPECT_EQ(order_of(1, false), "abaaaaaabbbbbb");
  const std::string turns = order_of(2, true);
  EXPECT_EQ(turns, order_of(2, true));
  ASSERT_EQ(turns.size(), 14u);
  for (std::size_t i = 0; i < turns.size(); i += 2) EXPECT_NE(turns[i], turns[i + 1]) << turns;
  EXPECT_NE(turns, "ababababababab");
  bool differs = false;
  for (std::uint64_t seed = 3; seed < 8; ++seed) differs = differs || order_of(seed, true) != turns;
  EXPECT_TRUE(differs);
}

TEST(Runner, AVariantThatHasHadEnoughKeepsItsTurnWhileOthersHaveNot) {
  FakeClock clock;
  MeasureOptions options;
  options.stopping.budget_s = 20;
  int run = 0;
  const Variant noisy{"noisy", [&] { clock.now += ++run % 2 == 0 ? 1.5 : 0.5; }};
  const auto measured = measure({taking(clock, "steady", 0.5), noisy}, options, clock);
  EXPECT_EQ(measured[1].samples.size(), 20u);  // its budget
  EXPECT_EQ(measured[0].samples.size(), 20u);  // 10 would do
}

TEST(Runner, AVariantThatRunsOutOfMemoryEndsAloneAndTheOthersGoOn) {
  FakeClock clock;
  int runs = 0;
  const std::vector<Variant> variants{
      taking(clock, "good", 1),
      {"hungry", [] { throw OutOfMemory("cannot allocate 1 bytes"); }},
      {"odd", [] { throw Unsupported("not here"); }},
      {"late", [&] {
         clock.now += 1;
         if (++runs > 2) throw Error("broke at run three");
       }}};
  MeasureOptions options;
  options.stopping.budget_s = 100;
  const auto measured = measure(variants, options, clock);
  EXPECT_EQ(measured[0].status, CaseStatus::ok);
  EXPECT_GE(measured[0].samples.size(), 3u);
  EXPECT_EQ(measured[1].status, CaseStatus::out_of_memory);
  EXPECT_EQ(measured[1].reason, "cannot allocate 1 bytes");
  EXPECT_TRUE(measured[1].samples.empty());
  EXPECT_EQ(measured[2].status, CaseStatus::unsupported);
  EXPECT_EQ(measured[3].status, CaseStatus::failed);
  EXPECT_EQ(measured[3].samples.size(), 1u);  // after the warm-up: what it has, it keeps
}

TEST(Runner, EverySampleKeepsItsStartAndItsConditions) {
  FakeClock clock;
  clock.now = 500;
  MeasureOptions options;
  options.conditions = [&] { return Conditions{2e9, clock.now}; };
  const auto measured = measure({taking(clock, "a", 2)}, options, clock);
  const Sample& second = measured[0].samples.at(1);
  EXPECT_DOUBLE_EQ(second.start_s, 4);  // one warm-up and one sample before it
  EXPECT_DOUBLE_EQ(second.duration_s, 2);
  EXPECT_DOUBLE_EQ(second.clock_hz.value(), 2e9);
  EXPECT_DOUBLE_EQ(second.temp_c.value(), 506);
}

}  // namespace
}  // namespace dfa::bench
