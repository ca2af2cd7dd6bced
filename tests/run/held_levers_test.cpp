#include "run/held_levers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "sensors/nvml_world.h"

namespace dfa::run {
namespace {

// What a card was told, and how often its lease was renewed; refuses to renew when told to.
struct Told {
  std::atomic<int> renewed{0};
  std::atomic<bool> gone{false};
  std::vector<double> limits_w, clocks_hz;
  int ends = 0;
};

class Control final : public sensors::CardControl {
 public:
  explicit Control(Told& told) : told_(told) {}
  sensors::Value<sensors::PowerLimits> open(const std::string& card) override {
    if (card != "card") return {std::nullopt, Verdict::no("no such card")};
    return {sensors::PowerLimits{.found_w = 650, .least_w = 300, .most_w = 600}, {}};
  }
  Verdict keep(double) override {
    if (told_.gone) return Verdict::no("it is gone");
    ++told_.renewed;
    return Verdict::yes();
  }
  Verdict set_power_limit(double) override { return Verdict::no("never asked here"); }
  Verdict lock_clocks(double least_hz, double most_hz) override {
    if (least_hz < 900e6) return Verdict::no("not so low");
    EXPECT_EQ(least_hz, most_hz);
    told_.clocks_hz.push_back(least_hz);
    return Verdict::yes();
  }
  Verdict unlock_clocks() override {
    told_.clocks_hz.push_back(0);
    return Verdict::yes();
  }
  std::optional<Range> clocks_hz() const override { return std::nullopt; }
  void request_power_limit(double watts) override { told_.limits_w.push_back(watts); }
  void request_clocks(double) override {}
  Verdict end() override {
    ++told_.ends;
    return Verdict::yes();
  }

 private:
  Told& told_;
};

bool soon(const auto& happens) {
  for (int i = 0; i < 2000 && !happens(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return happens();
}

TEST(HeldLevers, RenewTheirLeaseUntilItIsRefused) {
  Told told;
  HeldLevers held(std::make_unique<Control>(told), "card", 0.03);
  EXPECT_TRUE(soon([&] { return told.renewed > 3; }));
  EXPECT_FALSE(held.lost());
  told.gone = true;
  EXPECT_TRUE(soon([&] { return held.lost().has_value(); }));
  EXPECT_EQ(held.lost(), "it is gone");
  EXPECT_TRUE(held.end());
  EXPECT_EQ(told.ends, 1);
}

TEST(HeldLevers, WhatWasFoundIsAskedForByNoNumber) {
  Told told;
  HeldLevers held(std::make_unique<Control>(told), "card", 60);
  const power::Lent lent = held.lent();
  ASSERT_TRUE(lent.limit);
  EXPECT_FALSE(lent.clocks);
  EXPECT_EQ(lent.limit->usual_w, 650);
  lent.limit->set(450);
  lent.limit->set(650);
  EXPECT_EQ(told.limits_w, (std::vector<double>{450, 0}));
}

TEST(HeldLevers, ClocksAreLockedWithAnAnswerUntilTheyAreLost) {
  Told told;
  HeldLevers held(std::make_unique<Control>(told), "card", 60);
  const power::Lent lent = held.lent();
  held.lock_clock(1200e6);
  held.lock_clock(0);
  EXPECT_THROW(held.lock_clock(800e6), Unsupported);
  EXPECT_FALSE(lent.gone());
  told.gone = true;  // seen in half a second, however long the lease
  EXPECT_TRUE(soon([&] { return lent.gone(); }));
  EXPECT_THROW(held.lock_clock(1200e6), Unsupported);
  EXPECT_EQ(told.clocks_hz, (std::vector<double>{1200e6, 0}));
}

TEST(HeldLevers, ClocksThatTheCardHasNotOrThatAreNotLentAreRefusedByName) {
  const testing::NvmlWorld world(testing::kCard + "sm_clocks 345 1980 15\n");
  power::Lent lent;
  const auto reason = [&](const char* text) -> std::string {
    try {
      clocks_of(text, "0000:3b:00.0", lent);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(reason("1200MHz"), "clocks '1200MHz': those of the card are not lent");
  lent.clocks = power::Clocks{.least_hz = 900e6, .most_hz = 2200e6};
  EXPECT_EQ(clocks_of("1200,1980,1200MHz", "0000:3b:00.0", lent),
            (std::vector<double>{1980e6, 1200e6}));
  EXPECT_EQ(clocks_of("1200:1260:30MHz", "0000:3b:00.0", lent),
            (std::vector<double>{1260e6, 1230e6, 1200e6}));
  EXPECT_NE(reason("1200,870MHz").find("870 MHz is not lent; accepted: 900 to 2200"),
            std::string::npos);
  EXPECT_NE(reason("2100MHz").find("no 2100 MHz; of its 345 to 1980 MHz 1980 is the nearest"),
            std::string::npos);
  EXPECT_NE(reason("1201MHz").find("no 1201 MHz; of its 345 to 1980 MHz 1200 is the nearest"),
            std::string::npos);
  for (const char* bad :
       {"", "MHz", "1200", "1.2GHz", "1200,MHz", "1200:1300MHz", "1300:1200:10MHz", "1:2000:1MHz",
        "-1200MHz", "1200 MHz", "nanMHz", "infMHz"}) {
    EXPECT_NE(reason(bad).find("accepted: 1980,1500,1200MHz"), std::string::npos) << bad;
  }
}

TEST(HeldLevers, ACardThatIsNotLentIsRefused) {
  Told told;
  EXPECT_THROW(HeldLevers(std::make_unique<Control>(told), "other", 1), Unsupported);
  told.gone = true;
  EXPECT_THROW(HeldLevers(std::make_unique<Control>(told), "card", 1), Unsupported);
}

}  // namespace
}  // namespace dfa::run
