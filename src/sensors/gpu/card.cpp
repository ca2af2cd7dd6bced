#include "sensors/gpu/card.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace dfa::sensors {

int ComputeProcesses::foreign(bool own_context) const {
  const int others = static_cast<int>(pids.size()) - (own || own_context ? 1 : 0);
  return std::max(0, others);
}

bool is_activity(Gauge gauge) {
  return gauge == Gauge::sm_active || gauge == Gauge::tensor_active || gauge == Gauge::dram_active;
}

std::string clock_event_names(std::uint64_t bits) {
  constexpr std::pair<ClockEvent, const char*> kNames[] = {
      {ClockEvent::idle, "idle"},
      {ClockEvent::application_clocks, "application_clocks"},
      {ClockEvent::power_cap, "power_cap"},
      {ClockEvent::hardware_slowdown, "hardware_slowdown"},
      {ClockEvent::sync_boost, "sync_boost"},
      {ClockEvent::thermal_slowdown, "thermal_slowdown"},
      {ClockEvent::hardware_thermal, "hardware_thermal"},
      {ClockEvent::hardware_power_brake, "hardware_power_brake"},
      {ClockEvent::display_clocks, "display_clocks"},
  };
  std::string text;
  for (const auto& [event, name] : kNames) {
    const auto bit = static_cast<std::uint64_t>(event);
    if ((bits & bit) == 0) continue;
    text += (text.empty() ? "" : ", ") + std::string(name);
    bits &= ~bit;
  }
  if (bits != 0) text += fmt::format("{}{:#x}", text.empty() ? "" : ", ", bits);
  return text.empty() ? "none" : text;
}

}  // namespace dfa::sensors
