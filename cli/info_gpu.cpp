#include <fmt/format.h>

#include "cli/info_section.h"
#include "sensors/gpu/registry.h"
#include "sensors/system_clock.h"

namespace dfa::cli {
namespace {

std::string describe(const sensors::GpuCard& device) {
  const sensors::CardFacts& facts = device.facts();
  std::string text = fmt::format("{}, {}, driver {}", facts.name, facts.uuid, facts.driver);
  const sensors::CardSettings settings = device.settings();
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
    case Quantity::transfer_bytes: return fmt::format("{:.3f} GB counted", value * 1e-9);
    case Quantity::duration_s: return fmt::format("{:.3f} s since the driver was loaded", value);
    case Quantity::event_bits: return sensors::clock_event_names(static_cast<std::uint64_t>(value));
  }
  return "unknown quantity";
}

Item sensor(const sensors::GpuCard& device, const sensors::GaugeInfo& info, const Clock& clock) {
  const sensors::MeterSet set = device.open(info.gauge, clock);
  const std::string name = device.facts().pci_id + " " + info.name;
  if (set.empty()) return {name, set.status.reason, false};
  const auto reading = set.meters[0]->read();
  if (reading) return {name, text_of(info.quantity, reading->value)};
  // Activity counters need a second sample; that they opened is what there is to say.
  if (sensors::is_activity(info.gauge)) return {name, "works"};
  return {name, set.meters[0]->status().reason, false};
}

// A card and its sensors, or that it is counted and does not answer.
void add_card(std::size_t index, const sensors::Value<sensors::CardPtr>& card, Section& section) {
  if (!card.value) {
    section.items.push_back({fmt::format("GPU {}", index), card.status.reason, false});
    section.unanswered.push_back(
        fmt::format("GPU {} does not answer: {}", index, card.status.reason));
    return;
  }
  const sensors::SystemClock clock;
  section.items.push_back({(*card.value)->facts().pci_id, describe(**card.value)});
  for (const sensors::GaugeInfo& info : (*card.value)->gauges()) {
    section.items.push_back(sensor(**card.value, info, clock));
  }
}

}  // namespace

Section gpu_sensor_section() {
  Section section{"gpu sensors", {}};
  const sensors::GpuSensors gpus;
  if (!gpus.status()) {
    section.items.push_back({"library", gpus.status().reason, false});
    return section;
  }
  for (const std::string& text : gpus.descriptions()) section.items.push_back({"library", text});
  const auto devices = gpus.list();
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
