#include "monitor/sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/enum_table.h"
#include "dfa/error.h"

namespace dfa::monitor {
namespace {

constexpr auto kStandings = enum_table<Standing>(
    {{Standing::within, "within"}, {Standing::above, "above"}, {Standing::unknown, "unknown"}});

std::string why_missing(const CardNow& card, Gauge gauge) {
  if (!card.status) return card.status.reason;
  const auto found = card.missing.find(gauge);
  return found != card.missing.end() ? found->second : "it tells none";
}

void add(Total& total, const CardNow& card, Gauge gauge, std::optional<double> value) {
  if (value) {
    total.sum = total.sum.value_or(0) + *value;
    ++total.said;
    return;
  }
  total.missing += fmt::format("{}{}: {}", total.missing.empty() ? "" : "; ", name_of(card),
                               why_missing(card, gauge));
}

}  // namespace

const char* name_of(Standing standing) { return kStandings.name(standing); }

Sum sum_of(std::span<const CardNow> cards) {
  Sum sum;
  for (const CardNow& card : cards) {
    ++sum.cards;
    add(sum.power, card, Gauge::power_average, value_of(card, Gauge::power_average));
    add(sum.energy, card, Gauge::energy, growth_of(card, Gauge::energy));
    const auto energy = card.growth.find(Gauge::energy);
    if (energy != card.growth.end()) sum.breaks += energy->second.breaks;
  }
  return sum;
}

Budget::Budget(double budget_w) {
  if (!std::isfinite(budget_w) || !(budget_w > 0)) {
    throw InvalidArgument(fmt::format("a budget of {} W; accepted: watts above 0", budget_w));
  }
  state_.budget_w = budget_w;
}

const BudgetState& Budget::look(double time_s, const Sum& now) {
  const double since_s = looked_s_ ? std::max(0.0, time_s - *looked_s_) : 0;
  const double told_s = std::min(since_s, kReach);
  looked_s_ = time_s;
  const double told_w = now.power.sum.value_or(0);
  state_.over_w = told_w - state_.budget_w;
  state_.standing = state_.over_w > 0            ? Standing::above
                    : now.power.said < now.cards ? Standing::unknown
                                                 : Standing::within;
  state_.watched_s += since_s;
  state_.unknown_s += since_s - told_s;
  if (state_.standing == Standing::unknown) state_.unknown_s += told_s;
  if (state_.standing == Standing::above) {
    state_.above_s += told_s;
    state_.most_w = std::max(state_.most_w, told_w);
  }
  return state_;
}

}  // namespace dfa::monitor
