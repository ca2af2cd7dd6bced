#pragma once

#include "contract/diagnostics.h"
#include "gpu/device.h"

namespace dfa::cuda {

// The copy rate of the device's memory, measured for about `seconds`; rates of multiplication are
// left at 0, not measured. Throws OutOfMemory when not even 256 MiB are free.
Ceilings measure_ceilings(const gpu::Device& device, double seconds);

}  // namespace dfa::cuda
