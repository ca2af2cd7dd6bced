#pragma once

#include "gpu/device.h"
#include "spec/limits.h"

namespace dfa::cuda {

// The device that DFA_CUDA_DEVICE names: that of the calling thread's context unless it is set.
// Throws InvalidArgument when that is no device's number.
const gpu::Device& chosen_device();

// What plans for a device may use: of the calling thread's context where that is a part of it.
Limits limits_of(const gpu::Device& device);

}  // namespace dfa::cuda
