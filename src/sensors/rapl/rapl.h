#pragma once

#include <filesystem>

#include "contract/clock.h"
#include "sensors/meter_set.h"

// Energy counters of the processor (RAPL), as the kernel's powercap interface shows them.
namespace dfa::sensors {

// One energy counter per package and per memory (dram) domain found under
// `<sysfs_root>/class/powercap`. Values are joules since the meter was opened, wrap-around taken
// out; a counter that is never read for as long as it takes to wrap twice loses a turn. The status
// says why there are none: no such interface, or counters that only root may read.
MeterSet open_rapl(const std::filesystem::path& sysfs_root, const Clock& clock);

}  // namespace dfa::sensors
