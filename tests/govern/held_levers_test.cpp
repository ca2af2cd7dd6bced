#include "govern/held_levers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace dfa::govern {
namespace {

// What a card was told, and how often its lease was renewed; refuses to renew when told to.
struct Told {
  std::atomic<int> renewed{0};
  std::atomic<bool> gone{false};
  std::vector<double> limits_w;
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
  Verdict lock_clocks(double, double) override { return Verdict::no("never asked here"); }
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

TEST(HeldLevers, ACardThatIsNotLentIsRefused) {
  Told told;
  EXPECT_THROW(HeldLevers(std::make_unique<Control>(told), "other", 1), Unsupported);
  told.gone = true;
  EXPECT_THROW(HeldLevers(std::make_unique<Control>(told), "card", 1), Unsupported);
}

}  // namespace
}  // namespace dfa::govern
