#include <cmath>
#include <utility>

#include "base/json.h"
#include "power/trace.h"

namespace dfa::power {
namespace {

Json counter(const char* name, double time_s, Json values) {
  return {{"ph", "C"}, {"pid", 1}, {"name", name}, {"ts", 1e6 * time_s}, {"args", values}};
}

// What was not measured is left out.
void add(Json& values, const char* key, double value) {
  if (std::isfinite(value)) values[key] = value;
}

Json slice(const Decision& first, double end_s, const Setup& setup) {
  return {{"ph", "X"},
          {"pid", 1},
          {"tid", 1},
          {"name", text_of(setup.points[first.action.point], first.action.clock_hz)},
          {"cat", name_of(first.status)},
          {"ts", 1e6 * first.time_s},
          {"dur", 1e6 * (end_s - first.time_s)},
          {"args", {{"status", name_of(first.status)}, {"why", first.why}}}};
}

}  // namespace

std::string to_chrome_trace(const Trace& trace) {
  Json events = Json::array();
  for (const TraceSample& s : trace.samples) {
    Json power = Json::object();
    add(power, "instant_w", s.power_w);
    add(power, "second_w", s.second_w);
    if (s.cap_w > 0) add(power, "cap_w", s.cap_w);
    Json temperature = Json::object(), clock = Json::object();
    add(temperature, "die_c", s.temp_c);
    add(clock, "sm_mhz", s.clock_hz / 1e6);
    for (const auto& [name, values] :
         {std::pair{"power", power}, {"temperature", temperature}, {"clock", clock}}) {
      if (!values.empty()) events.push_back(counter(name, s.time_s, values));
    }
  }
  const Decision* first = nullptr;
  for (const Decision& decision : trace.decisions) {
    events.push_back(counter("level", decision.time_s,
                             {{"level", decision.level}, {"duty", decision.action.duty}}));
    const bool same = first != nullptr && first->action.point == decision.action.point &&
                      first->action.clock_hz == decision.action.clock_hz &&
                      first->status == decision.status;
    if (same) continue;
    if (first != nullptr) events.push_back(slice(*first, decision.time_s, trace.setup));
    first = &decision;
  }
  if (first != nullptr) events.push_back(slice(*first, trace.decisions.back().time_s, trace.setup));
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace dfa::power
