#pragma once

#include <vector>

// Several cards under one budget of power. A coordinator hands out leases: so many watts until so
// late. A card whose lease has run out falls back to its safe share, so that the sum stays within
// the budget when messages or the coordinator are lost.
namespace dfa::power {

struct CardReport {
  double heard_s = 0;  // when the report was made
  double lease_w = 0;  // the lease the card lives by now
  double power_w = 0;
  double step_s = 0;   // time of one step of the common work
  double least_w = 0;  // below which it cannot go
  double most_w = 0;   // above which it gains nothing
};

struct Lease {
  double power_w = 0;
  double until_s = 0;
};

struct RackSettings {
  double lease_s = 1;
  double safe_share = 0.9;  // of an equal share: what a card without a lease may draw
  double step_w = 20;       // moved from the fastest to the slowest card in one round, at most
  double worth = 0.01;      // difference of step times that is left alone
};

// Of loops that wait for each other, whose step times are over their duties: these answer a lease
// at once, so that watts which move faster swing.
inline constexpr RackSettings kLoopRack{.step_w = 8};

// What a card without a valid lease may draw.
double safe_power(double budget_w, std::size_t cards, const RackSettings& settings);

// The targets of the next round: the slowest card first. The sum is within the budget.
std::vector<double> share_power(double budget_w, const std::vector<CardReport>& cards,
                                const RackSettings& settings);

// Leases towards these targets such that, whatever messages arrive, the sum of what cards live by
// stays within the budget: decreases go out at once, increases only out of what reports say has
// been given up. `promised_w`: the largest unexpired lease sent to each card.
std::vector<Lease> next_leases(double now_s, double budget_w, const std::vector<double>& targets,
                               const std::vector<CardReport>& cards,
                               const std::vector<double>& promised_w, const RackSettings& settings);

}  // namespace dfa::power
