#include "simulate/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "power/trace.h"

namespace dfa::simulate {
namespace {

constexpr double kSettle = 1;
constexpr double kSecond = 1;
constexpr double kTempSettle = 60;  // a card's heat takes its time
constexpr double kBand = 1.02;

// Starts of sections.
std::vector<double> sections(const Scenario& scenario) {
  std::vector<double> starts{0};
  for (const Event& event : scenario.events) {
    if (event.at_s > starts.back()) starts.push_back(event.at_s);
  }
  return starts;
}

struct Tally {
  int settled = 0, above = 0;
  double overshoot = 0, settling = 0, square = 0, over_c = -1e9;
  int deviations = 0;
};

void measure_power(const std::vector<Sample>& samples, double begin, Tally& tally) {
  double last_above = begin;
  double sum = 0, squares = 0;
  int count = 0;
  for (const Sample& s : samples) {
    if (s.cap_w <= 0) continue;
    if (s.power_w > kBand * s.cap_w) last_above = s.time_s;
    if (s.time_s > begin + kSettle + 1e-6) {
      sum += s.power_w;
      squares += s.power_w * s.power_w;
      ++count;
    }
    if (s.time_s < begin + kSettle + kSecond - 1e-6) continue;
    ++tally.settled;
    if (s.second_w > s.cap_w) ++tally.above;
    tally.overshoot = std::max(tally.overshoot, s.second_w / s.cap_w - 1);
  }
  tally.settling = std::max(tally.settling, last_above - begin);
  if (count > 5) {
    tally.square += squares - sum * sum / count;
    tally.deviations += count;
  }
}

template <typename T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json to_json(const Metrics& m) {
  return {{"kind", "measures"},
          {"violation_pct", optional_json(m.violation_pct)},
          {"overshoot_pct", optional_json(m.overshoot_pct)},
          {"settling_s", optional_json(m.settling_s)},
          {"power_deviation_w", optional_json(m.power_deviation_w)},
          {"temp_over_c", optional_json(m.temp_over_c)},
          {"switches_per_minute", m.switches_per_minute},
          {"infeasible_pct", m.infeasible_pct},
          {"mean_power_w", m.mean_power_w},
          {"work_per_j", m.work_per_j},
          {"work_vs_pacing", optional_json(m.work_vs_pacing)}};
}

}  // namespace

Metrics measure(const Scenario& scenario, const Run& run, const Interrupted& interrupted) {
  Metrics m;
  Tally tally;
  const std::vector<double> starts = sections(scenario);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const double end = i + 1 < starts.size() ? starts[i + 1] : scenario.seconds;
    std::vector<Sample> section;
    for (const Sample& s : run.samples) {
      if (s.time_s > starts[i] + 1e-6 && s.time_s <= end + 1e-6) section.push_back(s);
    }
    measure_power(section, starts[i], tally);
    for (const Sample& s : section) {
      if (s.cap_c > 0 && s.time_s > starts[i] + kTempSettle) {
        tally.over_c = std::max(tally.over_c, s.temp_c - s.cap_c);
      }
    }
  }
  const bool capped = std::any_of(run.samples.begin(), run.samples.end(),
                                  [](const Sample& s) { return s.cap_w > 0; });
  if (capped) m.settling_s = tally.settling;
  if (tally.settled > 0) {
    m.violation_pct = 100.0 * tally.above / tally.settled;
    m.overshoot_pct = 100 * tally.overshoot;
  }
  if (tally.deviations > 0) m.power_deviation_w = std::sqrt(tally.square / tally.deviations);
  if (tally.over_c > -1e8) m.temp_over_c = tally.over_c;
  int switches = 0, infeasible = 0;
  for (std::size_t i = 0; i < run.decisions.size(); ++i) {
    const auto& decision = run.decisions[i];
    if (i > 0 && decision.action.point != run.decisions[i - 1].action.point) ++switches;
    if (decision.status == power::Status::infeasible) ++infeasible;
  }
  m.switches_per_minute = 60 * switches / scenario.seconds;
  m.infeasible_pct =
      100.0 * infeasible / std::max<double>(1, static_cast<double>(run.decisions.size()));
  m.mean_power_w = run.energy_j / scenario.seconds;
  m.work_per_j = run.work / run.energy_j;
  if (scenario.bounds.work_vs_pacing) {
    const double work = simulate::run(pacing_only(scenario), interrupted).work;
    if (!interrupted || !interrupted()) m.work_vs_pacing = run.work / work;
  }
  return m;
}

std::vector<std::string> missed(const Scenario& scenario, const Run& run, const Metrics& metrics) {
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
  if (bounds.work_vs_pacing && !(metrics.work_vs_pacing.value_or(0) >= *bounds.work_vs_pacing)) {
    texts.push_back(fmt::format("work_vs_pacing is {:.3f}, at least {:.3g} is asked for",
                                metrics.work_vs_pacing.value_or(0), *bounds.work_vs_pacing));
  }
  const auto reached = [&](const power::Decision& d) { return name_of(d.status) == bounds.status; };
  if (!bounds.status.empty() && std::none_of(run.decisions.begin(), run.decisions.end(), reached)) {
    texts.push_back("status " + bounds.status + " was not reached");
  }
  return texts;
}

std::string to_trace(const Scenario& scenario, const Run& run, const Metrics& metrics,
                     const std::string& source) {
  Json head = {{"kind", "head"},
               {"schema", "dfa-trace/1"},
               {"source", source},
               {"name", scenario.name},
               {"about", scenario.about},
               {"policy", to_text(scenario.policy)},
               {"card", scenario.card.name}};
  Json events = Json::array();
  for (const Event& event : scenario.events) {
    events.push_back({{"time_s", event.at_s}, {"note", event.note}});
  }
  head["events"] = events;
  std::string text = head.dump() + "\n";
  for (const Sample& s : run.samples) {
    const Json line = {{"kind", "sample"},
                       {"time_s", s.time_s},
                       {"power_w", s.power_w},
                       {"second_w", s.second_w},
                       {"temp_c", s.temp_c},
                       {"clock_hz", s.clock_hz},
                       {"work_per_s", s.work_per_s},
                       {"cap_w", s.cap_w > 0 ? Json(s.cap_w) : Json()},
                       {"cap_c", s.cap_c > 0 ? Json(s.cap_c) : Json()}};
    text += line.dump() + "\n";
  }
  for (const power::Decision& decision : run.decisions) {
    text += power::to_json_line(decision, run.setup) + "\n";
  }
  return text + to_json(metrics).dump() + "\n";
}

}  // namespace dfa::simulate
