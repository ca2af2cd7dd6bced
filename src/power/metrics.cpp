#include "power/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace dfa::power {
namespace {

constexpr double kSettle = 1;
constexpr double kSecond = 1;
constexpr double kTempSettle = 60;  // a card's heat takes its time
constexpr double kBand = 1.02;

// Starts of sections.
std::vector<double> sections(const TraceHead& head) {
  std::vector<double> starts{0};
  for (const TraceEvent& event : head.events) {
    if (event.at_s > starts.back()) starts.push_back(event.at_s);
  }
  return starts;
}

struct Tally {
  int settled = 0, above = 0;
  double overshoot = 0, settling = 0, square = 0, over_c = -1e9;
  int deviations = 0;
};

void measure_power(const std::vector<TraceSample>& samples, double begin, Tally& tally) {
  double last_above = begin;
  double sum = 0, squares = 0;
  int count = 0;
  for (const TraceSample& s : samples) {
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
          {"inexact_s", optional_json(m.inexact_s)},
          {"mean_power_w", m.mean_power_w},
          {"work_per_j", m.work_per_j},
          {"work_vs_pacing", optional_json(m.work_vs_pacing)}};
}

}  // namespace

Metrics measure(const TraceHead& head, const Trace& trace) {
  Metrics m;
  Tally tally;
  const std::vector<double> starts = sections(head);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const double end = i + 1 < starts.size() ? starts[i + 1] : head.seconds;
    std::vector<TraceSample> section;
    for (const TraceSample& s : trace.samples) {
      if (s.time_s > starts[i] + 1e-6 && s.time_s <= end + 1e-6) section.push_back(s);
    }
    measure_power(section, starts[i], tally);
    for (const TraceSample& s : section) {
      if (s.cap_c > 0 && s.time_s > starts[i] + kTempSettle) {
        tally.over_c = std::max(tally.over_c, s.temp_c - s.cap_c);
      }
    }
  }
  const bool capped = std::any_of(trace.samples.begin(), trace.samples.end(),
                                  [](const TraceSample& s) { return s.cap_w > 0; });
  if (capped) m.settling_s = tally.settling;
  if (tally.settled > 0) {
    m.violation_pct = 100.0 * tally.above / tally.settled;
    m.overshoot_pct = 100 * tally.overshoot;
  }
  if (tally.deviations > 0) m.power_deviation_w = std::sqrt(tally.square / tally.deviations);
  if (tally.over_c > -1e8) m.temp_over_c = tally.over_c;
  int switches = 0, infeasible = 0;
  for (std::size_t i = 0; i < trace.decisions.size(); ++i) {
    const auto& decision = trace.decisions[i];
    if (i > 0 && decision.action.point != trace.decisions[i - 1].action.point) ++switches;
    if (decision.status == PolicyStatus::infeasible) ++infeasible;
  }
  m.switches_per_minute = 60 * switches / head.seconds;
  m.infeasible_pct =
      100.0 * infeasible / std::max<double>(1, static_cast<double>(trace.decisions.size()));
  m.mean_power_w = trace.energy_j / head.seconds;
  m.work_per_j = trace.work / trace.energy_j;
  return m;
}

std::string to_trace(const TraceHead& head, const Trace& trace, const Metrics& metrics,
                     const std::string& source) {
  Json first = {{"kind", "head"},    {"schema", "dfa-trace/1"}, {"source", source},
                {"name", head.name}, {"about", head.about},     {"policy", to_text(head.policy)},
                {"card", head.card}};
  Json events = Json::array();
  for (const TraceEvent& event : head.events) {
    events.push_back({{"time_s", event.at_s}, {"note", event.note}});
  }
  first["events"] = events;
  std::string text = first.dump() + "\n";
  for (const TraceSample& s : trace.samples) {
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
  for (const Decision& decision : trace.decisions) {
    text += to_json_line(decision, trace.setup) + "\n";
  }
  return text + to_json(metrics).dump() + "\n";
}

}  // namespace dfa::power
