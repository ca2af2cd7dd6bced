#pragma once

#include "gpu/device.h"

namespace dfa::cuda {

// The device that DFA_CUDA_DEVICE names. Throws InvalidArgument when that is no device's number.
const gpu::Device& chosen_device();

}  // namespace dfa::cuda
