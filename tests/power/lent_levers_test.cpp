#include "power/lent_levers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "power/choose.h"
#include "power/controller.h"
#include "power/pacer.h"

namespace dfa::power {
namespace {

struct LentCard {
  std::vector<double> set, locked;
  Pacer pacer;
  LentLevers actuator{
      pacer,
      {.limit = Limit{.usual_w = 700,
                      .least_w = 200,
                      .most_w = 700,
                      .set = [this](double w) { set.push_back(w); }},
       .clocks = Clocks{.least_hz = 900e6, .most_hz = 1500e6, .lock = [this](double hz) {
                          locked.push_back(hz);
                        }}}};

  Setup setup() const {
    Setup setup;
    setup.points = {{.label = "fast", .time_s = 1e-3, .power_w = 690, .energy_j = 0.69},
                    {.label = "frugal", .time_s = 1.1e-3, .power_w = 500, .energy_j = 0.55}};
    setup.idle_w = 100;
    setup.limit_w = 700;
    setup.levers = actuator.levers();
    return setup;
  }
};

TEST(LentLevers, ACapIsTheCardsOwnLimitWithoutGaps) {
  LentCard lent;
  const ControlStep made = step({}, {.time_s = 1}, {Goal::power_cap, 450}, lent.setup());
  EXPECT_EQ(made.action().limit_w, 441);  // less the margin
  EXPECT_EQ(made.action().duty, 1);
  EXPECT_EQ(made.action().point, 1u);  // more work under the cap
  EXPECT_EQ(made.decision.status, PolicyStatus::holding);
  lent.actuator.apply(made.action());
  lent.actuator.apply(made.action());
  EXPECT_EQ(lent.set, std::vector<double>{441});  // once
}

TEST(LentLevers, BelowTheLeastLimitGapsDoTheRest) {
  LentCard lent;
  const ControlStep made = step({}, {.time_s = 1}, {Goal::power_cap, 160}, lent.setup());
  EXPECT_EQ(made.action().limit_w, 200);
  EXPECT_LT(made.action().duty, 0.3);
}

TEST(LentLevers, AnotherPolicyHasTheUsualLimit) {
  LentCard lent;
  const auto setup = lent.setup();
  const ControlStep capped = step({}, {.time_s = 1}, {Goal::power_cap, 450}, setup);
  lent.actuator.apply(capped.action());
  const ControlStep free = step(capped.state, {.time_s = 2}, {Goal::min_energy, 0}, setup);
  EXPECT_EQ(free.action().limit_w, 0);
  lent.actuator.apply(free.action());
  EXPECT_EQ(lent.set, (std::vector<double>{441, 700}));
}

TEST(LentLevers, NothingIsLentUnlessSomebodyLendsIt) {
  LentCard lent;
  auto setup = lent.setup();
  setup.levers = lent.pacer.levers();
  const ControlStep made = step({}, {.time_s = 1}, {Goal::power_cap, 450}, setup);
  EXPECT_EQ(made.action().limit_w, 0);
  EXPECT_LT(made.action().duty, 1);
}

TEST(LentLevers, APolicyTurnsOneOfThemAndTheNextTurnsItBack) {
  LentCard lent;
  const auto setup = lent.setup();
  const ControlStep limited = step({}, {.time_s = 1}, parse_policy("limit:450W"), setup);
  EXPECT_EQ(limited.action().limit_w, 450);
  EXPECT_EQ(limited.action().duty, 1);
  EXPECT_EQ(limited.action().point, 1u);  // more work below that limit
  lent.actuator.apply(limited.action());
  const ControlStep locked =
      step(limited.state, {.time_s = 2}, parse_policy("clock:1200MHz"), setup);
  EXPECT_EQ(locked.action().limit_w, 0);
  EXPECT_EQ(locked.action().clock_hz, 1200e6);
  EXPECT_EQ(locked.action().point, 0u);
  lent.actuator.apply(locked.action());
  lent.actuator.apply(locked.action());
  const ControlStep capped =
      step(locked.state, {.time_s = 3}, parse_policy("power_cap:300W"), setup);
  lent.actuator.apply(capped.action());
  EXPECT_EQ(lent.set, (std::vector<double>{450, 700, 294}));
  EXPECT_EQ(lent.locked, (std::vector<double>{1200e6, 0}));
}

TEST(LentLevers, TheCardHoldsItsLimitWhateverIsKnownOfPoints) {
  LentCard lent;
  auto setup = lent.setup();
  for (OperatingPoint& point : setup.points) point.power_w = point.energy_j = std::nullopt;
  const Policy policy = parse_policy("limit:450W");
  ASSERT_TRUE(check(setup, policy));
  const ControlStep made = step({}, {.time_s = 1}, policy, setup);
  EXPECT_EQ(made.action().limit_w, 450);
  EXPECT_EQ(made.action().point, 0u);  // the fastest, as watts are not known
  EXPECT_EQ(made.decision.status, PolicyStatus::holding);
}

// A configuration at its own clock and at three locked ones, the lowest of which is not lent.
Setup at_clocks(const LentCard& lent) {
  Setup setup = lent.setup();
  setup.points = {
      {.label = "tile", .time_s = 1e-3, .power_w = 690, .energy_j = 0.69},
      {.label = "tile", .time_s = 1.25e-3, .power_w = 500, .energy_j = 0.625, .clock_hz = 1500e6},
      {.label = "tile", .time_s = 1.6e-3, .power_w = 360, .energy_j = 0.576, .clock_hz = 1200e6},
      {.label = "tile", .time_s = 2.5e-3, .power_w = 200, .energy_j = 0.5, .clock_hz = 750e6}};
  setup.levers.limit_least_w = setup.levers.limit_most_w = 0;  // clocks alone
  return setup;
}

TEST(LentLevers, EachPolicyChoosesItsClockAmongThoseThatWereMeasuredAndAreLent) {
  const LentCard lent;
  const auto setup = at_clocks(lent);
  const auto mhz_by = [&](const char* policy) {
    const ControlStep made = step({}, {.time_s = 1}, parse_policy(policy), setup);
    EXPECT_EQ(made.decision.status, PolicyStatus::holding) << policy;
    EXPECT_EQ(made.action().clock_hz, setup.points[made.action().point].clock_hz.value_or(0));
    return made.action().clock_hz * 1e-6;
  };
  EXPECT_EQ(mhz_by("max_performance"), 0);
  EXPECT_EQ(mhz_by("min_energy"), 1200);  // 750 MHz would take less
  EXPECT_EQ(mhz_by("edp"), 0);            // 0.69, 0.78 and 0.92 mJs
  EXPECT_EQ(mhz_by("latency:1.1ms"), 0);
  EXPECT_EQ(mhz_by("latency:1.3ms"), 1500);
  EXPECT_EQ(mhz_by("latency:3ms"), 1200);
  EXPECT_EQ(mhz_by("power_cap:700W"), 0);
  EXPECT_EQ(mhz_by("power_cap:520W"), 1500);
  EXPECT_EQ(mhz_by("power_cap:400W"), 1200);
  EXPECT_EQ(mhz_by("power_cap:250W"), 1200);  // and gaps
  const ControlStep named = step({}, {.time_s = 1}, parse_policy("clock:1300MHz"), setup);
  EXPECT_EQ(named.action(), (Action{.point = 0, .clock_hz = 1300e6}));
}

TEST(LentLevers, ACapThatTheLimitHoldsNeedsNoClock) {
  const LentCard lent;
  auto setup = at_clocks(lent);
  setup.levers = lent.actuator.levers();
  const auto action = [&](double watts) {
    return step({}, {.time_s = 1}, Policy::power_cap(watts), setup).action();
  };
  EXPECT_EQ(action(400), (Action{.point = 0, .limit_w = 392}));
  const Action low = action(180);  // below the least limit
  EXPECT_EQ(low.clock_hz, 1200e6);
  EXPECT_EQ(low.limit_w, 200);
  EXPECT_NEAR(low.duty, (180 * 0.988 - 100) / 260, 1e-9);
}

// Whatever is measured, lent, lost and asked for: no clock runs that is not lent at that step, nor
// one that no row measured and no policy named.
TEST(LentLevers, NoClockIsChosenThatIsNotLent) {
  const Random random(11);
  const char* policies[] = {"limit:450W",    "min_energy",     "edp",
                            "latency:1.4ms", "power_cap:450W", "max_performance",
                            "temp_cap:60C",  "power_cap:230W", "clock:1200MHz"};
  int locked = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    auto draw = [&, i = seed * 1000]() mutable { return random.uniform(i++); };
    dfa::power::Setup setup;
    setup.idle_w = 100;
    setup.limit_w = 700;
    for (int i = 0; i < 8; ++i) {
      OperatingPoint point{.label = std::to_string(i % 3), .time_s = 1e-3 * (1 + draw())};
      point.power_w = 200 + 500 * draw();
      point.energy_j = *point.power_w * point.time_s;
      if (i > 0 && draw() < 0.8) point.clock_hz = 1e6 * (600 + 200 * std::floor(7 * draw()));
      setup.points.push_back(point);
    }
    State state;
    Policy policy = parse_policy("min_energy");
    for (int i = 0; i < 60; ++i) {
      if (draw() < 0.1) {  // lent, otherwise lent, or lost
        const bool any = draw() < 0.7;
        setup.levers.clock_least_hz = any ? 1e6 * (600 + 600 * draw()) : 0;
        setup.levers.clock_most_hz = any ? setup.levers.clock_least_hz + 1e9 * draw() : 0;
        setup.levers.limit_least_w = draw() < 0.3 ? 250 : 0;
        setup.levers.limit_most_w = setup.levers.limit_least_w > 0 ? 700 : 0;
      }
      if (draw() < 0.1) policy = parse_policy(policies[static_cast<int>(9 * draw())]);
      const double now = 1 + 0.1 * i;
      const bool was_lent = lends(setup.levers, state.action.clock_hz);
      const Action before = state.action;
      state = step(state,
                   {.time_s = now,
                    .power = Reading{now, 150 + 500 * draw()},
                    .temp_c = 50 + 20 * draw(),
                    .call_s = 1e-3 * (1 + draw())},
                   policy, setup)
                  .state;
      const double hz = state.action.clock_hz;
      ASSERT_TRUE(hz == 0 || lends(setup.levers, hz)) << seed << " " << i;
      const double measured = setup.points[state.action.point].clock_hz.value_or(0);
      ASSERT_TRUE(hz == measured || hz == policy.clock_hz()) << seed << " " << i;
      ASSERT_TRUE(measured == 0 || !policy.turns_card()) << seed << " " << i;
      ASSERT_TRUE(state.action.limit_w == 0 || setup.levers.limit_most_w > 0) << seed << " " << i;
      locked += hz > 0 ? 1 : 0;
      if (before.clock_hz > 0 && !was_lent) {
        ++lost;
        ASSERT_NE(hz, before.clock_hz);
      }
    }
  }
  EXPECT_GT(locked, 3000);
  EXPECT_GT(lost, 100);
}

// A change of clock is one of the point: it dwells and has to be worth it.
TEST(LentLevers, AChangeOfClockDwellsAndIsWorthIt) {
  const LentCard lent;
  auto setup = at_clocks(lent);
  State state = step({}, {.time_s = 1}, parse_policy("latency:1.3ms"), setup).state;
  ASSERT_EQ(state.action.clock_hz, 1500e6);
  const Policy least = parse_policy("min_energy");
  state = step(state, {.time_s = 1.2}, least, setup).state;
  EXPECT_EQ(state.action.clock_hz, 1500e6);  // 8 % better, after 0.2 s
  setup.points[2].energy_j = 0.61;           // 2.5 % better
  state = step(state, {.time_s = 2}, least, setup).state;
  EXPECT_EQ(state.action.clock_hz, 1500e6);
  setup.points[2].energy_j = 0.576;
  state = step(state, {.time_s = 2.1}, least, setup).state;
  EXPECT_EQ(state.action.clock_hz, 1200e6);
}

// What the card draws at its own clock, when the lease has ended unseen, is no bias.
TEST(LentLevers, ALostLeaseGoesBackAtOnceAndTeachesNothing) {
  LentCard lent;
  bool gone = false;
  std::vector<double> locked;
  LentLevers actuator(lent.pacer,
                      {.clocks = Clocks{.least_hz = 900e6,
                                        .most_hz = 1500e6,
                                        .lock = [&](double hz) { locked.push_back(hz); }},
                       .gone = [&] { return gone; }});
  auto setup = at_clocks(lent);
  setup.levers = actuator.levers();
  const Policy cap = Policy::power_cap(400);
  ControlStep made = step({}, {.time_s = 1}, cap, setup);
  for (int i = 1; i < 30; ++i) {
    actuator.apply(made.action());
    const double now = 1 + 0.1 * i;
    made = step(made.state, {.time_s = now, .power = Reading{now, 360}}, cap, setup);
  }
  EXPECT_EQ(made.action().clock_hz, 1200e6);
  EXPECT_EQ(locked, std::vector<double>{1200e6});
  gone = true;
  setup.levers = actuator.levers();
  made = step(made.state, {.time_s = 4, .power = Reading{4, 690}}, cap, setup);
  EXPECT_EQ(made.action().clock_hz, 0);
  EXPECT_EQ(made.state.bias, 1);
  EXPECT_NEAR(made.action().duty, (400 * 0.988 - 100) / 590, 1e-9);
  EXPECT_NE(made.decision.why.find("no longer lent"), std::string::npos) << made.decision.why;
  actuator.apply(made.action());
  EXPECT_EQ(locked, std::vector<double>{1200e6});  // nobody is asked any more
}

TEST(LentLevers, ALeverThatIsThePolicyIsToldWhenItIsLost) {
  const LentCard lent;
  auto setup = lent.setup();
  State state = step({}, {.time_s = 1}, parse_policy("clock:1200MHz"), setup).state;
  EXPECT_EQ(state.action.clock_hz, 1200e6);
  setup.levers = lent.pacer.levers();
  const ControlStep made = step(state, {.time_s = 2}, parse_policy("clock:1200MHz"), setup);
  EXPECT_EQ(made.action().clock_hz, 0);
  EXPECT_EQ(made.decision.status, PolicyStatus::infeasible);
  EXPECT_NE(made.decision.why.find("nobody lends"), std::string::npos) << made.decision.why;
}

TEST(LentLevers, APointAtTheCardsOwnClockMustBeThereToGoBackTo) {
  const LentCard lent;
  auto setup = at_clocks(lent);
  const Policy policy = parse_policy("min_energy");
  EXPECT_TRUE(check(setup, policy));
  setup.points[0].energy_j.reset();
  EXPECT_FALSE(check(setup, policy));
  setup.points.erase(setup.points.begin());
  EXPECT_NE(check(setup, policy).reason.find("at the card's own clock"), std::string::npos);
}

TEST(LentLevers, APolicyOfALeverThatIsNotLentIsRefused) {
  LentCard lent;
  auto setup = lent.setup();
  const auto reason = [&](const char* policy) { return check(setup, parse_policy(policy)).reason; };
  EXPECT_EQ(reason("limit:450W"), "");
  EXPECT_EQ(reason("clock:1200MHz"), "");
  EXPECT_EQ(reason("limit:150W"),
            "policy limit:150W: the card's own limit is lent from 200 to 700 W");
  EXPECT_EQ(reason("clock:1.8GHz"),
            "policy clock:1800MHz: the card's own clock is lent from 900 to 1500 MHz");
  setup.levers = lent.pacer.levers();
  EXPECT_EQ(reason("limit:450W"),
            "policy limit:450W turns the card's own limit, which nobody lends here");
  EXPECT_EQ(reason("clock:1200MHz"),
            "policy clock:1200MHz turns the card's own clock, which nobody lends here");
}

}  // namespace
}  // namespace dfa::power
