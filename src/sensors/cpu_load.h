#pragma once

#include <optional>

#include "sensors/host.h"

namespace dfa::sensors {

// Processor seconds since the machine started: those somebody used, and those there were; steal
// (time a hypervisor gave to others) counts as used.
struct CpuSeconds {
  double busy = 0;
  double total = 0;
  double own = 0;  // of this process
};

// Empty where /proc/stat does not tell. Ticks are 10 ms: compare readings some tenths of a second
// apart.
std::optional<CpuSeconds> read_cpu_seconds(const HostRoots& roots = host_roots());

// Percent of the machine's processors that others used between two readings, in [0, 100]; empty
// when no time has passed.
std::optional<double> other_load_pct(const CpuSeconds& before, const CpuSeconds& after);

}  // namespace dfa::sensors
