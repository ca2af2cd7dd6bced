#pragma once

#include <filesystem>

#include "contract/clock.h"
#include "sensors/meter_set.h"

// Energy counters of the processor (RAPL), as the kernel's powercap interface shows them.
namespace dfa::sensors {

// One energy counter per package and per memory (dram) domain found under
// `<sysfs_root>/class/powercap`. Values are joules since the meter was opened, turns of the counter
// taken out. Each meter must be read every longest_gap_s(); an EnergyWindow does so. A counter that
// went unread for so long that it may have turned over, that rose faster than any processor draws,
// or that stood still for a second gives no reading once and counts one of Reading::breaks. The
// status says why there are no meters: no such interface, or counters that only root may read.
MeterSet open_rapl(const std::filesystem::path& sysfs_root, const Clock& clock);

}  // namespace dfa::sensors
