#include "power/lent_levers.h"

#include <gtest/gtest.h>

#include <vector>

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
  const Step made = step({}, {.time_s = 1}, {Goal::power_cap, 450}, lent.setup());
  EXPECT_EQ(made.action().limit_w, 441);  // less the margin
  EXPECT_EQ(made.action().duty, 1);
  EXPECT_EQ(made.action().point, 1u);  // more work under the cap
  EXPECT_EQ(made.decision.status, Status::holding);
  lent.actuator.apply(made.action());
  lent.actuator.apply(made.action());
  EXPECT_EQ(lent.set, std::vector<double>{441});  // once
}

TEST(LentLevers, BelowTheLeastLimitGapsDoTheRest) {
  LentCard lent;
  const Step made = step({}, {.time_s = 1}, {Goal::power_cap, 160}, lent.setup());
  EXPECT_EQ(made.action().limit_w, 200);
  EXPECT_LT(made.action().duty, 0.3);
}

TEST(LentLevers, AnotherPolicyHasTheUsualLimit) {
  LentCard lent;
  const auto setup = lent.setup();
  const Step capped = step({}, {.time_s = 1}, {Goal::power_cap, 450}, setup);
  lent.actuator.apply(capped.action());
  const Step free = step(capped.state, {.time_s = 2}, {Goal::min_energy, 0}, setup);
  EXPECT_EQ(free.action().limit_w, 0);
  lent.actuator.apply(free.action());
  EXPECT_EQ(lent.set, (std::vector<double>{441, 700}));
}

TEST(LentLevers, NothingIsLentUnlessSomebodyLendsIt) {
  LentCard lent;
  auto setup = lent.setup();
  setup.levers = lent.pacer.levers();
  const Step made = step({}, {.time_s = 1}, {Goal::power_cap, 450}, setup);
  EXPECT_EQ(made.action().limit_w, 0);
  EXPECT_LT(made.action().duty, 1);
}

TEST(LentLevers, APolicyTurnsOneOfThemAndTheNextTurnsItBack) {
  LentCard lent;
  const auto setup = lent.setup();
  const Step limited = step({}, {.time_s = 1}, parse_policy("limit:450W"), setup);
  EXPECT_EQ(limited.action().limit_w, 450);
  EXPECT_EQ(limited.action().duty, 1);
  EXPECT_EQ(limited.action().point, 1u);  // more work below that limit
  lent.actuator.apply(limited.action());
  const Step locked = step(limited.state, {.time_s = 2}, parse_policy("clock:1200MHz"), setup);
  EXPECT_EQ(locked.action().limit_w, 0);
  EXPECT_EQ(locked.action().clock_hz, 1200e6);
  EXPECT_EQ(locked.action().point, 0u);
  lent.actuator.apply(locked.action());
  lent.actuator.apply(locked.action());
  const Step capped = step(locked.state, {.time_s = 3}, parse_policy("power_cap:300W"), setup);
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
  const Step made = step({}, {.time_s = 1}, policy, setup);
  EXPECT_EQ(made.action().limit_w, 450);
  EXPECT_EQ(made.action().point, 0u);  // the fastest, as watts are not known
  EXPECT_EQ(made.decision.status, Status::holding);
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
