#pragma once

#include <span>
#include <string>

#include "contract/clock.h"
#include "sensors/meter_set.h"
#include "sensors/nvml/device.h"

namespace dfa::nvml {

using sensors::Gauge;
using sensors::GaugeInfo;
using sensors::is_activity;

std::span<const GaugeInfo> gauges();
const GaugeInfo& info_of(Gauge gauge);

// At most one meter. Power, energy and utilisation of a card in MIG mode are refused: they are of
// all instances together, and NVML has none of a single one.
sensors::MeterSet open_meter(const Device& device, Gauge gauge, const Clock& clock);

}  // namespace dfa::nvml
