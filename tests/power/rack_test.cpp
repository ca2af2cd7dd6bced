#include "power/rack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace dfa::power {
namespace {

constexpr double kBudget = 4000;
constexpr std::size_t kCards = 8;

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::vector<CardReport> equal_cards() {
  return std::vector<CardReport>(
      kCards, {.lease_w = 500, .power_w = 495, .step_s = 1, .least_w = 200, .most_w = 700});
}

TEST(SharePower, TheSlowestGetsFromTheFastest) {
  auto cards = equal_cards();
  cards[2].step_s = 1.2;
  cards[5].step_s = 0.8;
  const auto targets = share_power(kBudget, cards, {});
  EXPECT_GT(targets[2], 500);
  EXPECT_LT(targets[5], 500);
  EXPECT_NEAR(sum(targets), kBudget, 1e-6);
}

TEST(SharePower, EqualCardsAreLeftAlone) {
  for (const double target : share_power(kBudget, equal_cards(), {}))
    EXPECT_NEAR(target, 500, 1e-9);
}

TEST(SharePower, ASmallerBudgetIsKeptAtOnce) {
  const auto targets = share_power(3000, equal_cards(), {});
  EXPECT_LE(sum(targets), 3000 + 1e-6);
  for (const double target : targets) EXPECT_GE(target, 200);
}

// A card: lives by its lease until it runs out, then by the smaller of lease and safe share.
struct Card {
  Lease lease;
  double least_w = 200, most_w = 700, speed = 1;
  double lived_w(double now, double safe) const {
    return now <= lease.until_s ? lease.power_w : std::min(lease.power_w, safe);
  }
};

// Messages get lost both ways, the coordinator dies for a while, the budget falls: the sum of what
// cards live by stays within the largest budget whose leases can still be alive.
TEST(Leases, TheSumStaysWithinTheBudgetWhateverIsLost) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Random random(seed);
    std::uint64_t draw = 0;
    const RackSettings settings;
    const double safe_now = safe_power(kBudget, kCards, settings);
    std::vector<Card> cards(kCards);
    std::vector<CardReport> reports(kCards);
    struct Promise {
      double power_w, until_s, sent_s;
    };
    std::vector<std::vector<Promise>> promises(kCards);
    for (std::size_t i = 0; i < kCards; ++i) {
      cards[i].lease = {safe_now, 0};
      cards[i].speed = 0.8 + 0.05 * static_cast<double>(i);
      promises[i].push_back({safe_now, 1e9, -1});
      reports[i] = {0, safe_now, safe_now, 1 / cards[i].speed, 200, 700};
    }
    for (int round = 0; round < 400; ++round) {
      const double now = 0.1 * round;
      for (std::size_t i = 0; i < kCards; ++i) {
        const double lived = cards[i].lived_w(now, safe_now);
        if (random.uniform(draw++) < 0.3) continue;  // the report is lost
        reports[i] = {now, lived, lived, 500 / (cards[i].speed * (lived - 100)), 200, 700};
        // What a card says it lives by replaces every promise made before.
        std::erase_if(promises[i], [&](const Promise& p) { return p.sent_s < now; });
        promises[i].push_back({lived, 1e9, now});
      }
      const bool dead = round > 150 && round < 200;
      if (!dead) {
        std::vector<double> promised(kCards, 0);
        for (std::size_t i = 0; i < kCards; ++i) {
          for (const Promise& p : promises[i]) promised[i] = std::max(promised[i], p.power_w);
        }
        ASSERT_LE(sum(promised), kBudget + 1e-6);
        const auto targets = share_power(kBudget, reports, settings);
        const auto leases = next_leases(now, kBudget, targets, reports, promised, settings);
        for (std::size_t i = 0; i < kCards; ++i) {
          promises[i].push_back({leases[i].power_w, leases[i].until_s, now});
          if (random.uniform(draw++) < 0.3) continue;  // the lease is lost
          cards[i].lease = leases[i];
        }
      }
      double lived = 0;
      for (const Card& card : cards) lived += card.lived_w(now, safe_now);
      ASSERT_LE(lived, kBudget + 1e-6) << "seed " << seed << " at " << now;
    }
    const auto [slow, fast] = std::minmax_element(
        cards.begin(), cards.end(),
        [](const Card& a, const Card& b) { return a.lease.power_w < b.lease.power_w; });
    EXPECT_GT(fast->lease.power_w, slow->lease.power_w + 30);  // the slow cards got more
  }
}

}  // namespace
}  // namespace dfa::power
