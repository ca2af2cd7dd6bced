#include "measure/telemetry.h"

#include <algorithm>

#include "sensors/gpu/registry.h"
#include "sensors/host.h"
#include "sensors/host_meters.h"
#include "sensors/rapl/rapl.h"

namespace dfa::measure {
namespace {

Telemetry host_telemetry(const Clock& clock) {
  const sensors::HostRoots roots = sensors::host_roots();
  const auto none = [](const char* why) { return sensors::MeterSet{{}, Verdict::no(why)}; };
  Telemetry host;
  host.energy = sensors::open_rapl(roots.sys, clock);
  host.power = none("RAPL counts energy and has no power of an instant");
  host.temperature = sensors::open_cpu_temperature(roots, clock);
  host.clock = sensors::open_cpu_clock(roots, clock);
  host.utilization = none("this backend runs on no GPU");
  host.power_capped = none("no throttle counters are read on this processor");
  host.too_hot = none("no throttle counters are read on this processor");
  return host;
}

}  // namespace

Telemetry open_telemetry(const GpuIdentity& gpu, const Clock& clock) {
  if (gpu.pci_id.empty()) return host_telemetry(clock);
  using sensors::Gauge;
  const auto card = sensors::find_card(gpu.pci_id);
  const auto open = [&](Gauge gauge) { return sensors::open_meter(card, gauge, clock); };
  return {.energy = open(Gauge::energy),
          .power = open(Gauge::power),
          .temperature = open(Gauge::temperature),
          .clock = open(Gauge::sm_clock),
          .utilization = open(Gauge::utilization),
          .power_capped = open(Gauge::power_capped),
          .too_hot = open(Gauge::too_hot),
          .on_gpu = true};
}

std::optional<GpuFacts> describe_gpu(const GpuIdentity& gpu) {
  if (gpu.pci_id.empty()) return std::nullopt;
  GpuFacts facts;
  facts.name = gpu.name;
  facts.sm_count = gpu.sm_count;
  if (const auto card = sensors::find_card(gpu.pci_id); card.value) {
    facts.driver = (*card.value)->facts().driver;
    facts.power_limit_w = (*card.value)->settings().power_limit_w;
  }
  return facts;
}

std::optional<int> foreign_processes(const GpuIdentity& gpu, int ours) {
  if (gpu.pci_id.empty()) return std::nullopt;
  const auto card = sensors::find_card(gpu.pci_id);
  if (!card.value) return std::nullopt;
  const auto processes = (*card.value)->compute_processes();
  if (!processes.value) return std::nullopt;
  return std::max(0, processes.value->foreign(true) - ours);
}

std::optional<double> value_of(const sensors::MeterSet& set) {
  if (set.empty()) return std::nullopt;
  const std::optional<Reading> reading = set.meters[0]->read();
  return reading ? std::optional(reading->value) : std::nullopt;
}

}  // namespace dfa::measure
