#pragma once

#include <optional>
#include <string>

#include "contract/clock.h"
#include "contract/device.h"
#include "sensors/meter_set.h"

namespace dfa::measure {

// For the head of a result file.
struct GpuFacts {
  std::string name;
  std::string driver;
  std::optional<double> power_limit_w;
  int sm_count = 0;
  friend bool operator==(const GpuFacts&, const GpuFacts&) = default;
};

// The sensors of the part that a backend runs on: the host's processors or one GPU. A set without a
// meter tells why.
struct Telemetry {
  sensors::MeterSet energy;
  sensors::MeterSet power;  // instantaneous
  sensors::MeterSet temperature;
  sensors::MeterSet clock;  // of the processors, or of the GPU's multiprocessors
  sensors::MeterSet utilization;
  sensors::MeterSet power_capped;  // time spent below the wanted clock, and why
  sensors::MeterSet too_hot;
  bool on_gpu = false;
};

// `gpu`: identity of the backend's GPU, empty for the host.
Telemetry open_telemetry(const GpuIdentity& gpu, const Clock& clock);

// Nothing for the host.
std::optional<GpuFacts> describe_gpu(const GpuIdentity& gpu);

// Programs of others on the GPU while this process has a context there, and as many that we started
// as `ours` says; their watts are in ours. Empty for the host and where the driver does not tell.
std::optional<int> foreign_processes(const GpuIdentity& gpu, int ours = 0);

// Value of the set's first meter.
std::optional<double> value_of(const sensors::MeterSet& set);

}  // namespace dfa::measure
