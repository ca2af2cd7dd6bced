#pragma once

#include <optional>
#include <span>
#include <string>

#include "monitor/watch.h"

namespace dfa::monitor {

// What those of the cards that tell it come to. Where not all do, it is the least that all may come
// to.
struct Total {
  std::optional<double> sum;  // empty where none tells it
  int said = 0;               // by so many cards
  std::string missing;        // which do not, and why
};

struct Sum {
  int cards = 0;
  Total power;     // W, means of a second: readings of 25 ms are not of the same moment
  Total energy;    // J since the watch began
  int breaks = 0;  // of the energy counters: what was used around them is in no sum
};

Sum sum_of(std::span<const CardNow> cards);

// How the power of all cards stands to a budget.
enum class Standing : int {
  within,
  above,    // what some of the cards tell may be enough for that
  unknown,  // not all cards tell theirs, and those that do are within it
};
const char* name_of(Standing standing);

struct BudgetState {
  double budget_w = 0;
  Standing standing = Standing::unknown;
  double over_w = 0;  // by which what is told is above it; below zero: below
  double above_s = 0;
  double unknown_s = 0;
  double watched_s = 0;  // of all looks, the two among it
  double most_w = 0;     // that was told while it was above
};

// Holds each sum against the budget. A look tells of the time since the look before, of kReach at
// most; what is longer ago is not known.
class Budget {
 public:
  static constexpr double kLookEvery = 1;             // s, for that: means are of a second
  static constexpr double kReach = 1.5 * kLookEvery;  // a look that comes late is none that is lost

  // Throws InvalidArgument unless above 0 and finite.
  explicit Budget(double budget_w);

  const BudgetState& look(double time_s, const Sum& now);

 private:
  BudgetState state_;
  std::optional<double> looked_s_;
};

}  // namespace dfa::monitor
