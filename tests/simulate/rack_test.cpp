#include "simulate/rack.h"

#include <gtest/gtest.h>

#include "dfa/error.h"

namespace dfa::simulate {
namespace {

Scenario rack_scenario() {
  return read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/rack/eight_cards.json");
}

TEST(Rack, KeepsItsBounds) {
  const Scenario scenario = rack_scenario();
  ASSERT_TRUE(scenario.rack);
  for (const std::string& miss : missed(scenario, measure_rack(scenario, run_rack(scenario)))) {
    ADD_FAILURE() << miss;
  }
}

TEST(Rack, SameSeedSamePower) {
  Scenario scenario = rack_scenario();
  scenario.seconds = 5;
  const auto a = run_rack(scenario), b = run_rack(scenario);
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    EXPECT_EQ(a.samples[i].power_w, b.samples[i].power_w);
  }
}

TEST(Rack, BoundsAreMissedWhereTheyShould) {
  Scenario scenario = rack_scenario();
  scenario.seconds = 12;
  scenario.events.clear();
  scenario.bounds = {};
  scenario.bounds.work_vs_equal = 2;
  scenario.bounds.imbalance_pct = 1e-9;
  EXPECT_EQ(missed(scenario, measure_rack(scenario, run_rack(scenario))).size(), 2u);
}

TEST(Rack, BadValuesAreNamed) {
  const std::string head =
      R"({"schema":"dfa-scenario/1","points":[{"dynamic_w":1,"work_per_s":1}],)";
  for (const char* bad : {R"("rack":{"cards":0,"budget_w":100}})", R"("rack":{"cards":2}})",
                          R"("rack":{"cards":2,"budget_w":100,"loss":2}})", R"("rack":[]})"}) {
    EXPECT_THROW(parse_scenario(head + bad), InvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace dfa::simulate
