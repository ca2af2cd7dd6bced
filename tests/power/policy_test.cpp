#include "power/policy.h"

#include <gtest/gtest.h>

#include "dfa/error.h"

namespace dfa::power {
namespace {

TEST(Policy, ReadsEveryForm) {
  EXPECT_EQ(parse_policy("max_performance"), (Policy{Goal::max_performance, 0}));
  EXPECT_EQ(parse_policy("min_energy"), (Policy{Goal::min_energy, 0}));
  EXPECT_EQ(parse_policy("edp"), (Policy{Goal::edp, 0}));
  EXPECT_EQ(parse_policy("power_cap:500W"), (Policy{Goal::power_cap, 500}));
  EXPECT_EQ(parse_policy("power_cap:0.5kW"), (Policy{Goal::power_cap, 500}));
  EXPECT_EQ(parse_policy("temp_cap:70C"), (Policy{Goal::temp_cap, 70}));
  EXPECT_EQ(parse_policy("latency:2ms"), (Policy{Goal::latency, 2e-3}));
  EXPECT_EQ(parse_policy("latency:2s"), (Policy{Goal::latency, 2}));
  EXPECT_EQ(parse_policy("latency:150us"), (Policy{Goal::latency, 150e-6}));
  EXPECT_EQ(parse_policy("limit:450W"), (Policy{Goal::limit, 450}));
  EXPECT_EQ(parse_policy("clock:1200MHz"), (Policy{Goal::clock, 1200}));
  EXPECT_EQ(parse_policy("clock:1.2GHz"), (Policy{Goal::clock, 1200}));
}

TEST(Policy, WritesWhatItReads) {
  for (const char* text :
       {"max_performance", "min_energy", "edp", "power_cap:500W", "power_cap:333.3W",
        "temp_cap:70C", "latency:2ms", "latency:150us", "limit:450W", "clock:1200MHz"}) {
    const Policy policy = parse_policy(text);
    EXPECT_EQ(parse_policy(to_text(policy)), policy) << text << " as " << to_text(policy);
  }
}

TEST(Policy, SaysWhatItTurns) {
  EXPECT_EQ(parse_policy("clock:1200MHz").clock_hz(), 1200e6);
  EXPECT_EQ(parse_policy("limit:450W").limit_w(), 450);
  EXPECT_EQ(parse_policy("power_cap:450W").limit_w(), std::nullopt);
  for (const char* text : {"clock:1200MHz", "limit:450W"}) {
    EXPECT_TRUE(parse_policy(text).turns_card());
    EXPECT_FALSE(parse_policy(text).is_cap());
  }
  EXPECT_FALSE(parse_policy("power_cap:450W").turns_card());
}

TEST(Policy, RefusesWithTheTextAndWhatIsAccepted) {
  for (const char* text : {"",
                           "fast",
                           "power_cap",
                           "power_cap:",
                           "power_cap:W",
                           "power_cap:500",
                           "power_cap:500 W",
                           "power_cap:-5W",
                           "power_cap:0W",
                           "power_cap:nanW",
                           "power_cap:infW",
                           "power_cap:1e9W",
                           "temp_cap:70F",
                           "temp_cap:500C",
                           "latency:0ms",
                           "latency:2",
                           "edp:1",
                           "limit:450MHz",
                           "limit",
                           "clock:1200",
                           "clock:1200Hz",
                           "clock:0MHz",
                           "min_energy:",
                           "Power_cap:500W",
                           "power_cap:500W "}) {
    try {
      parse_policy(text);
      ADD_FAILURE() << "accepted: '" << text << "'";
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("'" + std::string(text) + "'"), std::string::npos) << message;
      EXPECT_NE(message.find("power_cap:500W"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace dfa::power
