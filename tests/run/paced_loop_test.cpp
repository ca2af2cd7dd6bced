#include "run/paced_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "dfa/error.h"
#include "run/turned_clock.h"
#include "sensors/fakes.h"

namespace dfa::run {
namespace {

// Another one, that says nothing for a while.
class MutedMeter final : public Meter {
 public:
  explicit MutedMeter(Meter& meter) : meter_(meter) {}
  std::string name() const override { return meter_.name(); }
  Quantity quantity() const override { return meter_.quantity(); }
  double period_s() const override { return meter_.period_s(); }
  Verdict status() const override { return meter_.status(); }
  std::optional<Reading> read() override { return muted ? std::nullopt : meter_.read(); }
  std::atomic<bool> muted{true};

 private:
  Meter& meter_;
};

// A loop whose card draws what it works, under a cap.
struct CappedLoop {
  TurnedClock clock;
  LoopMeter meter{clock};
  PacedLoop loop;
  double mean = 1;  // share of work of the last steps, which the meter shows

  CappedLoop(double cap_w, double calibrate_s)
      : loop({.policy = {power::Goal::power_cap, cap_w},
              .idle_w = 100,
              .limit_w = 700,
              .calibrate_s = calibrate_s,
              .look_s = kNoWait},
             {.power = &meter}, clock) {
    clock.driven = [this] { return loop.calibrated(); };
  }

  double gap_after(double step_s) {
    clock.sleep_s(step_s);
    const double begin = clock.now_s();
    loop.pace();
    return clock.now_s() - begin;
  }
  void work(int steps) {
    for (int i = 0; i < steps; ++i) {
      mean += 0.2 * (kWork / (kWork + gap_after(kWork)) - mean);
      meter.share = mean;
    }
  }
};

TEST(PacedLoop, HoldsACapByGapsAfterSteps) {
  CappedLoop capped(400, 0.2);
  capped.work(400);
  const PacedLoop& loop = capped.loop;
  EXPECT_TRUE(loop.calibrated());
  EXPECT_EQ(loop.steps(), 400);
  EXPECT_NEAR(100 + 500 * capped.mean, 395.2, 25);
  EXPECT_GT(loop.waited_s(), 0.5);
  ASSERT_TRUE(loop.last());
  EXPECT_EQ(loop.last()->status, power::PolicyStatus::holding);
}

// Of 0.59, what a step more in a second draws is left.
TEST(PacedLoop, LongStepsHaveLongerGaps) {
  CappedLoop capped(400, 0.2);
  capped.meter.duty = [&] { return capped.loop.duty(); };
  for (int i = 0; i < 14; ++i) capped.gap_after(0.08);
  EXPECT_NEAR(capped.loop.duty(), (0.5904 - 0.08) / (1 - 0.08), 0.01);
}

// Each gap is shorter than a sleep can be: several are one.
TEST(PacedLoop, GapsOfShortStepsAddUp) {
  CappedLoop capped(400, 0.05);
  capped.meter.duty = [&] { return capped.loop.duty(); };
  constexpr double kTiny = 5e-6;
  while (!capped.loop.calibrated()) capped.gap_after(kTiny);
  for (int i = 0; i < 20000; ++i) capped.gap_after(kTiny);
  const double waited = capped.loop.waited_s();
  for (int i = 0; i < 20000; ++i) capped.gap_after(kTiny);
  const double gaps = capped.loop.waited_s() - waited;
  EXPECT_NEAR(20000 * kTiny / (20000 * kTiny + gaps), 0.59, 0.03);
}

// A pause of the user's owes two seconds at most; steps that are all long owe what they take.
TEST(PacedLoop, AGapIsLongWhereAllStepsAre) {
  StepTimes times;
  for (int i = 0; i < 15; ++i) times.add(0.1);
  EXPECT_NEAR(times.gap_s(0.5), 0.1, 1e-9);
  times.add(3600);
  EXPECT_EQ(times.gap_s(0.5), 2);
  for (int i = 0; i < 16; ++i) times.add(10);
  EXPECT_NEAR(times.gap_s(0.25), 30, 1e-9);
}

// The meter shows 600 W whatever is done, as a card would whose limit nobody heeds.
TEST(PacedLoop, ALentLimitHoldsACapUntilItIsLost) {
  TurnedClock clock;
  LoopMeter meter(clock);
  std::atomic<double> limit_w{650};
  const power::Limit limit{.usual_w = 650, .least_w = 300, .most_w = 600, .set = [&](double watts) {
                             limit_w = watts;
                             meter.share = watts < 650 ? 0.58 : 1;
                           }};
  PacedLoop loop({.policy = {power::Goal::power_cap, 400},
                  .idle_w = 100,
                  .limit_w = 700,
                  .calibrate_s = 0.1,
                  .lent = {.limit = limit},
                  .look_s = kNoWait},
                 {.power = &meter}, clock);
  clock.driven = [&] { return loop.calibrated(); };
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      clock.sleep_s(0.004);
      loop.pace();
    }
  };
  steps(200);
  EXPECT_EQ(limit_w, 392);
  EXPECT_EQ(loop.duty(), 1);
  loop.lose_levers("gone");
  meter.share = 1;
  steps(300);
  EXPECT_EQ(limit_w, 392);  // nobody is asked any more
  EXPECT_LT(loop.duty(), 0.7);
}

TEST(PacedLoop, ALeverIsAPolicyWhereItIsLent) {
  TurnedClock clock;
  LoopMeter meter(clock);
  const power::Limit limit{.usual_w = 650, .least_w = 300, .most_w = 600, .set = [](double) {}};
  LoopOptions options{
      .policy = {power::Goal::limit, 450}, .idle_w = 100, .limit_w = 700, .calibrate_s = 0.05};
  EXPECT_THROW(PacedLoop(options, {.power = &meter}, clock), InvalidArgument);
  options.lent.limit = limit;
  PacedLoop loop(options, {.power = &meter}, clock);
  EXPECT_THROW(loop.set_policy({power::Goal::limit, 250}), Unsupported);
  EXPECT_THROW(loop.lose_levers("gone"), Unsupported);
  options.policy.value = 250;
  EXPECT_THROW(PacedLoop(options, {.power = &meter}, clock), Unsupported);
}

// A card that draws half at 1000 MHz, at which steps take half as long again.
struct ClockedLoop {
  TurnedClock clock;
  LoopMeter meter{clock};
  std::atomic<double> hz{0};
  std::vector<double> locked;
  PacedLoop loop;

  explicit ClockedLoop(const power::Policy& policy)
      : loop({.policy = policy,
              .idle_w = 100,
              .limit_w = 700,
              .calibrate_s = 0.1,
              .lent = {.clocks = power::Clocks{.least_hz = 900e6,
                                               .most_hz = 1500e6,
                                               .lock =
                                                   [this](double at) {
                                                     hz = at;
                                                     locked.push_back(at);
                                                   }}},
              .clocks_hz = {1500e6, 1000e6},
              .look_s = kNoWait},
             {.power = &meter}, clock) {
    clock.driven = [this] { return loop.calibrated(); };
  }

  void steps(int n) {
    for (int i = 0; i < n; ++i) {
      const double at = hz;
      clock.sleep_s(at == 1000e6 ? 0.006 : 0.004);
      meter.share = (at == 1000e6 ? 0.4 : at == 1500e6 ? 0.95 : 1.0) * loop.duty();
      loop.pace();
    }
  }
};

TEST(PacedLoop, AStepIsMeasuredAtEachClockAndThePolicyChooses) {
  // 600 W x 4 ms, 575 W x 4 ms and 300 W x 6 ms.
  ClockedLoop least({power::Goal::min_energy, 0});
  least.steps(150);
  EXPECT_TRUE(least.loop.calibrated());
  EXPECT_EQ(least.locked, (std::vector<double>{1500e6, 1000e6}));  // and it stays there
  EXPECT_EQ(least.loop.last().value().action.clock_hz, 1000e6);
  EXPECT_EQ(least.loop.duty(), 1);
  EXPECT_NEAR(*least.loop.full_w(), 600, 30);

  ClockedLoop soon({power::Goal::latency, 5e-3});
  soon.steps(150);
  EXPECT_EQ(soon.locked, (std::vector<double>{1500e6, 1000e6, 1500e6}));

  ClockedLoop cap({power::Goal::power_cap, 320});
  cap.steps(150);
  EXPECT_EQ(cap.hz, 1000e6);
  EXPECT_EQ(cap.loop.duty(), 1);
}

TEST(PacedLoop, WithoutItsLeaseItRunsAtTheCardsOwnClock) {
  ClockedLoop least({power::Goal::min_energy, 0});
  least.steps(150);
  ASSERT_EQ(least.hz, 1000e6);
  least.loop.lose_levers("gone");
  least.hz = 0;  // the card was put back
  least.steps(20);
  EXPECT_EQ(least.loop.last().value().action.clock_hz, 0);
  EXPECT_EQ(least.locked.size(), 2u);  // nobody is asked any more

  ClockedLoop early({power::Goal::power_cap, 400});
  early.steps(30);  // while 1500 MHz are measured
  ASSERT_FALSE(early.loop.calibrated());
  early.loop.lose_levers("gone");
  early.hz = 0;
  early.steps(200);
  EXPECT_TRUE(early.loop.calibrated());
  EXPECT_EQ(early.locked, std::vector<double>{1500e6});
  EXPECT_LT(early.loop.duty(), 0.75);
}

TEST(PacedLoop, AMeterOfMeansThatIsSilentKeepsNoCapAway) {
  TurnedClock clock;
  LoopMeter meter(clock);
  testing::FakeMeter means(Quantity::power_w);  // told to say nothing
  PacedLoop loop({.policy = {power::Goal::power_cap, 400},
                  .idle_w = 100,
                  .limit_w = 700,
                  .calibrate_s = 0.1,
                  .look_s = kNoWait},
                 {.power = &meter, .mean = &means}, clock);
  clock.driven = [&] { return loop.calibrated(); };
  for (int i = 0; i < 60; ++i) {
    clock.sleep_s(kWork);
    loop.pace();
  }
  EXPECT_TRUE(loop.calibrated());
}

// Two seconds beyond its calibration it says that it holds nothing; once there are watts it does.
TEST(PacedLoop, ASilentSensorIsNoEndlessCalibration) {
  TurnedClock clock;
  LoopMeter speaks(clock);
  MutedMeter meter(speaks);
  PacedLoop loop({.policy = {power::Goal::power_cap, 400},
                  .idle_w = 100,
                  .limit_w = 700,
                  .calibrate_s = 0.2,
                  .look_s = kNoWait},
                 {.power = &meter}, clock);
  clock.driven = [&] { return loop.calibrated(); };
  const auto steps_until = [&](double end_s) {
    while (clock.now_s() < end_s) {
      clock.sleep_s(kWork);
      loop.pace();
    }
  };
  steps_until(2.15);
  EXPECT_FALSE(loop.silent());
  steps_until(2.25);
  EXPECT_TRUE(loop.silent());
  EXPECT_FALSE(loop.calibrated());
  EXPECT_EQ(loop.waited_s(), 0);
  meter.muted = false;
  clock.sleep_s(1);  // a step that is no measure of those with watts
  loop.pace();
  EXPECT_FALSE(loop.silent());
  steps_until(clock.now_s() + 0.05);
  EXPECT_TRUE(loop.calibrated());
  EXPECT_FALSE(loop.silent());
  EXPECT_NEAR(*loop.full_w(), 600, 30);
}

// Steps so long that the calibration has too few readings when it is over are no silence.
TEST(PacedLoop, FewReadingsOfLongStepsAreNoSilence) {
  TurnedClock clock;
  LoopMeter meter(clock);
  PacedLoop loop(
      {.policy = {power::Goal::power_cap, 400}, .idle_w = 100, .limit_w = 700, .calibrate_s = 0.2},
      {.power = &meter}, clock);
  for (int i = 0; i < 2; ++i) {
    clock.sleep_s(5);
    loop.pace();
    EXPECT_FALSE(loop.silent());
    EXPECT_FALSE(loop.calibrated());
  }
}

TEST(PacedLoop, ClocksWithoutAUseAreRefused) {
  TurnedClock clock;
  LoopMeter meter(clock);
  const power::Clocks lent{.least_hz = 900e6, .most_hz = 1500e6, .lock = [](double) {}};
  LoopOptions options{.policy = {power::Goal::min_energy, 0}, .clocks_hz = {1500e6}};
  EXPECT_THROW(PacedLoop(options, {.power = &meter}, clock), Unsupported);
  options.lent.clocks = lent;
  EXPECT_NO_THROW(PacedLoop(options, {.power = &meter}, clock));
  options.clocks_hz = {1600e6};
  EXPECT_THROW(PacedLoop(options, {.power = &meter}, clock), Unsupported);
  options = {.policy = {power::Goal::clock, 1200}, .lent = {.clocks = lent}, .clocks_hz = {1500e6}};
  EXPECT_THROW(PacedLoop(options, {.power = &meter}, clock), InvalidArgument);
}

TEST(PacedLoop, AnotherCapHoldsFromThenOn) {
  CappedLoop capped(500, 0.1);
  PacedLoop& loop = capped.loop;
  EXPECT_FALSE(loop.full_w());
  capped.work(100);
  loop.set_policy({power::Goal::power_cap, 300});
  capped.work(300);
  EXPECT_NEAR(100 + 500 * capped.mean, 296, 25);
  ASSERT_TRUE(loop.full_w());
  EXPECT_NEAR(*loop.full_w(), 600, 30);
  EXPECT_THROW(loop.set_policy({power::Goal::temp_cap, 70}), InvalidArgument);
}

// A rank of a job whose steps hold the gaps of another, which it waits for: taken for work, they
// would make its own gaps longer, and those the other's.
TEST(PacedLoop, AStepThatWaitedForAnotherRankHasTheGapOfItsWork) {
  CappedLoop capped(400, 0.2);
  capped.work(400);
  // From here on the meter shows what it showed last.
  const auto gap_of = [&](int step) { return capped.gap_after(step % 2 == 0 ? 5 * kWork : kWork); };
  const double plain = capped.gap_after(kWork);
  ASSERT_GT(plain, kWork / 4);
  for (int i = 0; i < 8; ++i) gap_of(i);
  for (int i = 0; i < 8; ++i) {
    const double gap = gap_of(i);
    EXPECT_GT(gap, 0.75 * plain) << i;
    EXPECT_LT(gap, 2 * plain) << i;  // by the mean it would be up to three times, by each step five
  }
}

TEST(PacedLoop, StepsRunFreelyWhileItLearnsWhatTheyDraw) {
  TurnedClock clock;
  LoopMeter meter(clock);
  PacedLoop loop(
      {.policy = {power::Goal::power_cap, 200}, .idle_w = 100, .limit_w = 700, .calibrate_s = 60},
      {.power = &meter}, clock);
  for (int i = 0; i < 20; ++i) loop.pace();
  EXPECT_FALSE(loop.calibrated());
  EXPECT_EQ(loop.waited_s(), 0);
  EXPECT_FALSE(loop.last());
}

TEST(PacedLoop, ACapAboveWhatTheLoopDrawsCostsNothing) {
  CappedLoop capped(690, 0.1);
  for (int i = 0; i < 100; ++i) capped.gap_after(kWork);
  const PacedLoop& loop = capped.loop;
  EXPECT_TRUE(loop.calibrated());
  EXPECT_LT(loop.waited_s(), 0.02);
}

TEST(PacedLoop, WhatCannotBeHeldIsRefused) {
  TurnedClock clock;
  LoopMeter meter(clock);
  EXPECT_THROW(PacedLoop({.policy = {power::Goal::min_energy, 0}}, {.power = &meter}, clock),
               InvalidArgument);
  EXPECT_THROW(PacedLoop({.policy = {power::Goal::power_cap, 400}}, {}, clock), Unsupported);
  EXPECT_THROW(PacedLoop({.policy = {power::Goal::temp_cap, 70}}, {.power = &meter}, clock),
               Unsupported);
  PacedLoop idle({.policy = {power::Goal::power_cap, 400}, .idle_w = 650, .calibrate_s = 0.01},
                 {.power = &meter}, clock);
  EXPECT_THROW(
      {
        for (int i = 0; i < 1000; ++i) {
          clock.sleep_s(0.001);
          idle.pace();
        }
      },
      Unsupported);
}

}  // namespace
}  // namespace dfa::run
