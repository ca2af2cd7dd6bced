#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "dfa/error.h"
#include "simulate/marks.h"
#include "simulate/run.h"

namespace dfa::simulate {
namespace {

std::vector<std::filesystem::path> scenario_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(DFA_SOURCE_DIR) + "/scenarios")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class ScenarioFile : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(ScenarioFile, ReachesItsMarks) {
  const Scenario scenario = read_scenario(GetParam());
  EXPECT_EQ(scenario.name, GetParam().stem());
  const auto result = run(scenario);
  const Measures measures = measure(scenario, result);
  for (const std::string& miss : missed(scenario, result, measures)) ADD_FAILURE() << miss;
}

TEST_P(ScenarioFile, SameSeedSameTrace) {
  const Scenario scenario = read_scenario(GetParam());
  const auto a = run(scenario), b = run(scenario);
  EXPECT_EQ(to_trace(scenario, a, {}), to_trace(scenario, b, {}));
}

INSTANTIATE_TEST_SUITE_P(Files, ScenarioFile, ::testing::ValuesIn(scenario_files()),
                         [](const auto& file) { return file.param.stem().string(); });

Scenario capped(double watts, double seconds = 20) {
  Scenario scenario = read_scenario(std::string(DFA_SOURCE_DIR) + "/scenarios/cap_step.json");
  scenario.events.clear();
  scenario.policy = {power::Goal::power_cap, watts};
  scenario.seconds = seconds;
  return scenario;
}

// Marks that nobody could reach are missed: the ruler measures.
TEST(Marks, AreMissedWhereTheyShould) {
  Scenario scenario = capped(500);
  scenario.marks = {};
  scenario.marks.work_vs_pacing = 3;
  scenario.marks.status = "infeasible";
  scenario.marks.power_deviation_w = 1e-6;
  const auto result = run(scenario);
  EXPECT_EQ(missed(scenario, result, measure(scenario, result)).size(), 3u);
  scenario.marks = {.violation_pct = 1, .overshoot_pct = 2, .settling_s = 1};
  auto blind = run([&] {
    Scenario free = scenario;
    free.policy = {power::Goal::max_performance, 0};
    return free;
  }());
  for (Sample& sample : blind.samples) sample.cap_w = 500;  // held against a cap it never knew
  EXPECT_EQ(missed(scenario, blind, measure(scenario, blind)).size(), 3u);
}

TEST(Caps, AnyReachableCapIsHeld) {
  for (double watts = 160; watts <= 690; watts += 10) {
    const Scenario scenario = capped(watts, 12);
    const auto result = run(scenario);
    const Measures m = measure(scenario, result);
    EXPECT_LE(*m.violation_pct, 1) << watts;
    EXPECT_LE(*m.overshoot_pct, 2) << watts;
    EXPECT_GT(m.mean_power_w, 0.93 * std::min(watts, 640.0)) << watts;  // what is allowed is used
  }
}

// Steadier than the firmware's own cap.
TEST(Caps, PowerIsSteadierThanWithout) {
  const auto deviation = [](const Scenario& scenario) {
    auto result = run(scenario);
    for (Sample& sample : result.samples) sample.cap_w = 700;
    return *measure(scenario, result).power_deviation_w;
  };
  Scenario free = capped(680);
  free.policy = {power::Goal::max_performance, 0};
  free.points.resize(1);
  Scenario held = capped(640);
  held.points.resize(1);
  EXPECT_LT(deviation(held), 0.5 * deviation(free));
}

TEST(Speed, ThousandsOfTimesFasterThanTime) {
  const auto result = run(capped(500, 100));
  EXPECT_GT(100 / result.host_s, 1000);
}

TEST(Scenario, BadFilesAreNamed) {
  const std::string head =
      R"({"schema":"dfa-scenario/1","points":[{"dynamic_w":1,"work_per_s":1}],)";
  for (const char* bad :
       {R"("policy":"fast"})", R"("secunds":5})", R"("seconds":"5"})", R"("seconds":-1})",
        R"("events":[{"at_s":5},{"at_s":2}]})", R"("events":[{"whom":1}]})", R"("events":3})",
        R"("marks":{"x":1}})", R"("card":[]})", R"("seed":-1})"}) {
    EXPECT_THROW(parse_scenario(head + bad), InvalidArgument) << bad;
  }
  EXPECT_THROW(parse_scenario("{"), InvalidArgument);
  EXPECT_THROW(parse_scenario(R"({"schema":"dfa-scenario/2"})"), InvalidArgument);
  EXPECT_THROW(parse_scenario(R"({"schema":"dfa-scenario/1"})"), InvalidArgument);  // no points
  EXPECT_THROW(read_scenario("/nowhere"), IoError);
}

}  // namespace
}  // namespace dfa::simulate
