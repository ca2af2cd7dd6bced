#include "power/lent_limit.h"

#include <gtest/gtest.h>

#include <vector>

#include "power/controller.h"
#include "power/pacer.h"

namespace dfa::power {
namespace {

struct Lent {
  std::vector<double> set;
  Pacer pacer;
  LentLimit actuator{pacer,
                     {.usual_w = 700, .least_w = 200, .most_w = 700, .set = [this](double w) {
                        set.push_back(w);
                      }}};

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

TEST(LentLimit, ACapIsTheCardsOwnLimitWithoutGaps) {
  Lent lent;
  const Step made = step({}, {.time_s = 1}, {Goal::power_cap, 450}, lent.setup());
  EXPECT_EQ(made.action().limit_w, 450);
  EXPECT_EQ(made.action().duty, 1);
  EXPECT_EQ(made.action().point, 1u);  // more work under the cap
  EXPECT_EQ(made.decision.status, Status::holding);
  lent.actuator.apply(made.action());
  lent.actuator.apply(made.action());
  EXPECT_EQ(lent.set, std::vector<double>{450});  // once
}

TEST(LentLimit, BelowTheLeastLimitGapsDoTheRest) {
  Lent lent;
  const Step made = step({}, {.time_s = 1}, {Goal::power_cap, 160}, lent.setup());
  EXPECT_EQ(made.action().limit_w, 200);
  EXPECT_LT(made.action().duty, 0.3);
}

TEST(LentLimit, AnotherPolicyHasTheUsualLimit) {
  Lent lent;
  const auto setup = lent.setup();
  const Step capped = step({}, {.time_s = 1}, {Goal::power_cap, 450}, setup);
  lent.actuator.apply(capped.action());
  const Step free = step(capped.state, {.time_s = 2}, {Goal::min_energy, 0}, setup);
  EXPECT_EQ(free.action().limit_w, 0);
  lent.actuator.apply(free.action());
  EXPECT_EQ(lent.set, (std::vector<double>{450, 700}));
}

TEST(LentLimit, NothingIsLentUnlessSomebodyLendsIt) {
  Lent lent;
  auto setup = lent.setup();
  setup.levers = lent.pacer.levers();
  const Step made = step({}, {.time_s = 1}, {Goal::power_cap, 450}, setup);
  EXPECT_EQ(made.action().limit_w, 0);
  EXPECT_LT(made.action().duty, 1);
}

}  // namespace
}  // namespace dfa::power
