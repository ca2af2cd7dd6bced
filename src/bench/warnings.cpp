#include "bench/warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace dfa::bench {
namespace {

constexpr double kDisturbingPct = 10;
constexpr double kDisagreeingPct = 3;  // more than sensors of one card differ under a steady load
constexpr double kHotPct = 1;

struct Worst {
  int cases = 0;    // beyond the limit
  double most = 0;  // of all cases
};

Worst worst_of(const Result& result, double limit,
               const std::function<std::optional<double>(const CaseResult&)>& value) {
  Worst worst;
  for (const CaseResult& c : result.cases) {
    const double one = value(c).value_or(0);
    if (one > limit) ++worst.cases;
    worst.most = std::max(worst.most, one);
  }
  return worst;
}

std::optional<double> disagreement_pct(const CaseResult& c) {
  if (!c.power_avg_w || !c.power_sampled_w || !(*c.power_avg_w > 0)) return std::nullopt;
  return 100 * std::abs(*c.power_sampled_w / *c.power_avg_w - 1);
}

std::optional<double> foreign(const CaseResult& c) {
  if (!c.foreign_processes) return std::nullopt;
  return *c.foreign_processes;
}

}  // namespace

std::vector<std::string> warnings(const Result& result) {
  std::vector<std::string> lines;
  const std::size_t all = result.cases.size();
  const Worst load =
      worst_of(result, kDisturbingPct, [](const auto& c) { return c.other_load_pct; });
  if (load.cases > 0) {
    lines.push_back(fmt::format(
        "disturbed: other processes used up to {:.0f} % of the processors during {} of {} cases; "
        "repeat on a quiet machine before comparing",
        load.most, load.cases, all));
  }
  const Worst others = worst_of(result, 0, foreign);
  if (others.cases > 0) {
    lines.push_back(fmt::format(
        "disturbed: up to {:.0f} programs of others were on the GPU during {} of {} cases; their "
        "watts are in the energy",
        others.most, others.cases, all));
  }
  const Worst apart = worst_of(result, kDisagreeingPct, disagreement_pct);
  if (apart.cases > 0) {
    lines.push_back(
        fmt::format("doubtful: the energy counter and the instantaneous power differ by up to "
                    "{:.1f} % in {} of "
                    "{} cases",
                    apart.most, apart.cases, all));
  }
  const Worst hot = worst_of(result, kHotPct, [](const auto& c) { return c.throttle.thermal_pct; });
  if (hot.cases > 0) {
    lines.push_back(fmt::format(
        "too hot: heat held the clock down for up to {:.0f} % of the time in {} of {} cases",
        hot.most, hot.cases, all));
  }
  return lines;
}

}  // namespace dfa::bench
