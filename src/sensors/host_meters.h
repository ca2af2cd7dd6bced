#pragma once

#include "contract/clock.h"
#include "sensors/host.h"
#include "sensors/meter_set.h"

// Temperature and clock of the processor.
namespace dfa::sensors {

// At most one meter, in degrees Celsius: the processor's hwmon sensor, else its thermal zone.
MeterSet open_cpu_temperature(const HostRoots& roots, const Clock& clock);

// At most one meter, in Hz: the mean over all processors of cpufreq, else of /proc/cpuinfo. In a
// virtual machine the latter is a nominal figure, not a measurement, and there is no meter.
MeterSet open_cpu_clock(const HostRoots& roots, const Clock& clock);

}  // namespace dfa::sensors
