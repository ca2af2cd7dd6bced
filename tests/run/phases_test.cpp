// A server's loop under a cap: prompts may wait, tokens do not.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "run/paced_loop.h"
#include "run/turned_clock.h"

namespace dfa::run {
namespace {

// Shows the mean of the last tenth of a second or so of what a card draws, by the time that passes.
class CardMeter final : public FastPowerMeter {
 public:
  explicit CardMeter(const TurnedClock& clock) : clock_(clock) {}
  std::optional<Reading> read() override {
    const std::lock_guard lock(mutex_);
    const double now = clock_.shown_s();
    return Reading{now, mean_at(now) + 0.1 * std::sin(1e3 * now)};
  }
  void draw(double watts) {
    const std::lock_guard lock(mutex_);
    const double now = clock_.shown_s();
    mean_w_ = mean_at(now);
    since_s_ = now;
    watts_ = watts;
  }

 private:
  double mean_at(double now) const {
    return watts_ + (mean_w_ - watts_) * std::exp(-(now - since_s_) / 0.1);
  }

  const TurnedClock& clock_;
  std::mutex mutex_;
  double mean_w_ = 400, watts_ = 400, since_s_ = 0;
};

// Steps of a card that draws 600 W for prompts, 400 W for tokens and 100 W in gaps.
struct Server {
  static constexpr double kTokenW = 400, kPromptW = 600, kIdleW = 100;
  TurnedClock clock;
  CardMeter meter{clock};
  PacedLoop loop;

  explicit Server(double cap_w)
      : loop({.policy = {power::Goal::power_cap, cap_w},
              .idle_w = kIdleW,
              .limit_w = 700,
              .calibrate_s = 0.2,
              .look_s = kNoWait},
             {.power = &meter}, clock) {
    clock.driven = [this] { return loop.calibrated(); };
  }

  power::PolicyStatus status() const { return loop.last().value().status; }

  // How long the loop waited behind a step.
  double step(Phase phase, double seconds,
              double most_s = std::numeric_limits<double>::infinity()) {
    meter.draw(phase == Phase::decode ? kTokenW : kPromptW);
    clock.sleep_s(seconds);
    meter.draw(kIdleW);
    const double begin = clock.now_s();
    loop.pace(phase, most_s);
    return clock.now_s() - begin;
  }
};

TEST(Phases, PromptsWaitForWhatTokensDrew) {
  Server server(400);
  double joules = 0, seconds = 0;
  for (int round = 0; round < 200; ++round) {
    for (int token = 0; token < 4; ++token) {
      ASSERT_EQ(server.step(Phase::decode, 0.004), 0);
    }
    const double gap = server.step(Phase::prefill, 0.02);
    if (round < 100) continue;
    EXPECT_GT(gap, 0);
    joules += 4 * 0.004 * Server::kTokenW + 0.02 * Server::kPromptW + gap * Server::kIdleW;
    seconds += 4 * 0.004 + 0.02 + gap;
  }
  EXPECT_NEAR(joules / seconds, 395, 15);  // of 511 without gaps
  EXPECT_EQ(server.status(), power::PolicyStatus::holding);
  EXPECT_EQ(server.loop.steps(), 1000);
}

TEST(Phases, TokensThatDrawLessThanTheCapOweNothing) {
  Server server(500);
  for (int i = 0; i < 100; ++i) server.step(Phase::prefill, 0.004);
  ASSERT_LT(server.loop.duty(), 1);
  for (int i = 0; i < 1000; ++i) server.step(Phase::decode, 0.004);
  EXPECT_EQ(server.loop.duty(), 1);
  EXPECT_EQ(server.status(), power::PolicyStatus::holding);
  EXPECT_LT(server.step(Phase::prefill, 0.004), 0.005);
}

TEST(Phases, TokensAloneAboveTheCapAreToldAndNotHeld) {
  Server server(300);
  for (int i = 0; i < 100; ++i) server.step(Phase::prefill, 0.004);
  for (int i = 0; i < 400; ++i) EXPECT_EQ(server.step(Phase::decode, 0.004), 0);
  EXPECT_EQ(server.status(), power::PolicyStatus::infeasible);
  server.step(Phase::prefill, 0.004);
  EXPECT_EQ(server.status(), power::PolicyStatus::holding);
}

TEST(Phases, AWaitIsNoLongerThanItMayBeAndTheRestIsOwed) {
  Server server(300);
  for (int i = 0; i < 100; ++i) server.step(Phase::prefill, 0.02);
  const double usual = server.step(Phase::prefill, 0.02);
  ASSERT_GT(usual, 0.02);
  EXPECT_NEAR(server.step(Phase::prefill, 0.02, 0.005), 0.005, 1e-3);
  EXPECT_EQ(server.step(Phase::prefill, 0.02, 0), 0);
  EXPECT_GT(server.step(Phase::prefill, 0.02), 2 * usual);
}

// Prompts of 50 ms beside tokens that take half as long again at 1000 MHz: the bound is of tokens.
TEST(Phases, APolicyOfTimeGoesByTokens) {
  TurnedClock clock;
  LoopMeter meter(clock);
  std::atomic<double> hz{0};
  PacedLoop loop({.policy = {power::Goal::latency, 7e-3},
                  .idle_w = 100,
                  .limit_w = 700,
                  .calibrate_s = 0.3,
                  .lent = {.clocks = power::Clocks{.least_hz = 900e6,
                                                   .most_hz = 1500e6,
                                                   .lock = [&](double at) { hz = at; }}},
                  .clocks_hz = {1500e6, 1000e6, 900e6},
                  .look_s = kNoWait},
                 {.power = &meter}, clock);
  clock.driven = [&] { return loop.calibrated(); };
  for (int i = 0; i < 300; ++i) {
    const double slower = hz == 0 ? 1 : 1500e6 / hz;
    meter.share = 1 / (slower * slower);
    clock.sleep_s(0.004 * slower);
    loop.pace(Phase::decode);
    for (int prompt = 0; prompt < 2; ++prompt) {
      clock.sleep_s(0.05 * slower);
      loop.pace(Phase::prefill);
    }
  }
  EXPECT_TRUE(loop.calibrated());
  EXPECT_EQ(hz, 900e6);  // 6.7 ms
}

TEST(Phases, AnswersAloneAreEnoughToBegin) {
  Server server(400);
  for (int i = 0; i < 100; ++i) server.step(Phase::decode, 0.004);
  EXPECT_TRUE(server.loop.calibrated());
  EXPECT_NEAR(*server.loop.full_w(), 400, 30);
}

}  // namespace
}  // namespace dfa::run
