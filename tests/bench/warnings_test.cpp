#include "bench/warnings.h"

#include <gtest/gtest.h>

#include "bench/sample_result.h"

namespace dfa::bench {
namespace {

TEST(Warnings, AQuietResultHasNone) {
  Result result = testing::sample_result();
  for (CaseResult& c : result.cases) {
    c.other_load_pct = 9;
    c.foreign_processes = 0;
    c.power_avg_w = 600;
    c.power_sampled_w = 610;
    c.throttle = {100.0, 0.5};  // at the power cap is where full speed is
  }
  EXPECT_TRUE(warnings(result).empty());
}

TEST(Warnings, EachNamesTheWorstAndHowManyCases) {
  Result result = testing::sample_result();
  result.cases[0].other_load_pct = 55;
  result.cases[1].other_load_pct = 11;
  result.cases[1].foreign_processes = 2;
  result.cases[2].power_avg_w = 600;
  result.cases[2].power_sampled_w = 570;
  result.cases[2].throttle.thermal_pct = 40;
  const auto lines = warnings(result);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_NE(lines[0].find("55 % of the processors during 2 of 4"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("2 programs of others were on the GPU during 1 of 4"), std::string::npos);
  EXPECT_NE(lines[2].find("up to 5.0 % in 1 of 4"), std::string::npos) << lines[2];
  EXPECT_NE(lines[3].find("40 % of the time in 1 of 4"), std::string::npos) << lines[3];
}

}  // namespace
}  // namespace dfa::bench
