#include <fmt/format.h>

#include "cli/info_section.h"
#include "sensors/nvml/meters.h"
#include "sensors/system_clock.h"

namespace dfa::cli {
namespace {

std::string describe(const nvml::Device& device) {
  const nvml::DeviceFacts& facts = device.facts();
  std::string text = fmt::format("{}, {}, driver {}", facts.name, facts.uuid, facts.driver);
  const nvml::DeviceSettings settings = device.settings();
  if (settings.power_limit_w) text += fmt::format(", limit {:.0f} W", *settings.power_limit_w);
  if (settings.persistence) text += *settings.persistence ? ", persistent" : ", not persistent";
  if (settings.mig) text += ", MIG: power and energy are of all its instances together";
  const auto processes = device.compute_processes();
  if (processes.value) {
    const int foreign = processes.value->foreign(false);
    if (foreign > 0)
      text += fmt::format(", in use by {} other process{}", foreign, foreign == 1 ? "" : "es");
  } else {
    text += ", its users are unknown (" + processes.status.reason + ")";
  }
  return text;
}

std::string text_of(Quantity quantity, double value) {
  switch (quantity) {
    case Quantity::energy_j: return "works";  // only differences mean anything
    case Quantity::power_w: return fmt::format("{:.1f} W", value);
    case Quantity::temp_c: return fmt::format("{:.0f} C", value);
    case Quantity::clock_hz: return fmt::format("{:.0f} MHz", value * 1e-6);
    case Quantity::utilization_pct: return fmt::format("{:.0f} %", value);
    case Quantity::memory_bytes: return fmt::format("{:.0f} MiB", value / (1 << 20));
    case Quantity::duration_s: return fmt::format("{:.3f} s since the driver was loaded", value);
    case Quantity::event_bits: return nvml::clock_event_names(static_cast<std::uint64_t>(value));
  }
  return "unknown quantity";
}

Item sensor(const nvml::Device& device, const nvml::GaugeInfo& info, const Clock& clock) {
  const sensors::MeterSet set = nvml::open_meter(device, info.gauge, clock);
  const std::string name = device.facts().pci_id + " " + info.name;
  if (set.empty()) return {name, set.status.reason, false};
  const auto reading = set.meters[0]->read();
  if (reading) return {name, text_of(info.quantity, reading->value)};
  // Activity counters need a second sample; that they opened is what there is to say.
  if (nvml::is_activity(info.gauge)) return {name, "works"};
  return {name, set.meters[0]->status().reason, false};
}

// A card and its sensors, or that it is counted and does not answer.
void add_card(std::size_t index, const nvml::Value<nvml::Device>& card, Section& section) {
  if (!card.value) {
    section.items.push_back({fmt::format("GPU {}", index), card.status.reason, false});
    section.unanswered.push_back(
        fmt::format("GPU {} does not answer: {}", index, card.status.reason));
    return;
  }
  const sensors::SystemClock clock;
  section.items.push_back({card.value->facts().pci_id, describe(*card.value)});
  for (const nvml::GaugeInfo& info : nvml::gauges()) {
    section.items.push_back(sensor(*card.value, info, clock));
  }
}

}  // namespace

Section gpu_sensor_section() {
  Section section{"gpu sensors", {}};
  const nvml::OpenedLibrary opened = nvml::open_library();
  if (!opened.library) {
    section.items.push_back({"library", opened.status.reason, false});
    return section;
  }
  section.items.push_back(
      {"library", fmt::format("{}, NVML {}", opened.library->file(), opened.library->version())});
  const auto devices = nvml::list_devices(opened.library);
  if (!devices.value || devices.value->empty()) {
    section.items.push_back(
        {"GPU", devices.value ? "NVML lists none" : devices.status.reason, false});
    return section;
  }
  for (std::size_t i = 0; i < devices.value->size(); ++i) {
    add_card(i, (*devices.value)[i], section);
  }
  return section;
}

}  // namespace dfa::cli
