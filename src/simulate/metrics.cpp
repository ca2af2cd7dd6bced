#include "simulate/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulate/run.h"

namespace dfa::simulate {
power::Metrics measure(const Scenario& scenario, const power::Trace& trace,
                       const Interrupted& interrupted) {
  power::Metrics metrics = power::measure(head_of(scenario), trace);
  metrics.inexact_s = trace.inexact_s;
  if (scenario.bounds.work_vs_pacing) {
    const double work = simulate::run(pacing_only(scenario), interrupted).work;
    if (!interrupted || !interrupted()) metrics.work_vs_pacing = trace.work / work;
  }
  return metrics;
}

std::vector<std::string> missed(const Scenario& scenario, const power::Trace& trace,
                                const power::Metrics& metrics) {
  std::vector<std::string> texts;
  const auto at_most = [&](const char* name, std::optional<double> value,
                           std::optional<double> bound) {
    if (bound && !(value.value_or(1e9) <= *bound)) {
      texts.push_back(
          value ? fmt::format("{} is {:.3g}, at most {:.3g} is asked for", name, *value, *bound)
                : fmt::format("{} could not be measured", name));
    }
  };
  const MetricBounds& bounds = scenario.bounds;
  at_most("violation_pct", metrics.violation_pct, bounds.violation_pct);
  at_most("overshoot_pct", metrics.overshoot_pct, bounds.overshoot_pct);
  at_most("settling_s", metrics.settling_s, bounds.settling_s);
  at_most("power_deviation_w", metrics.power_deviation_w, bounds.power_deviation_w);
  at_most("temp_over_c", metrics.temp_over_c, bounds.temp_over_c);
  at_most("switches_per_minute", metrics.switches_per_minute, bounds.switches_per_minute);
  at_most("infeasible_pct", metrics.infeasible_pct, bounds.infeasible_pct);
  at_most("inexact_s", metrics.inexact_s, bounds.inexact_s);
  if (bounds.work_vs_pacing && !(metrics.work_vs_pacing.value_or(0) >= *bounds.work_vs_pacing)) {
    texts.push_back(fmt::format("work_vs_pacing is {:.3f}, at least {:.3g} is asked for",
                                metrics.work_vs_pacing.value_or(0), *bounds.work_vs_pacing));
  }
  const auto reached = [&](const power::Decision& d) { return name_of(d.status) == bounds.status; };
  if (!bounds.status.empty() &&
      std::none_of(trace.decisions.begin(), trace.decisions.end(), reached)) {
    texts.push_back("status " + bounds.status + " was not reached");
  }
  return texts;
}

}  // namespace dfa::simulate
