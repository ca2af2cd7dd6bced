#pragma once

#include "sensors/meter_set.h"
#include "sensors/simulated/gpu.h"

namespace dfa::simulated {

enum class Gauge : int { energy, power, power_average, temperature, sm_clock, power_capped };

// One meter of the card, which must outlive it.
sensors::MeterSet open_meter(const Gpu& gpu, Gauge gauge);

}  // namespace dfa::simulated
