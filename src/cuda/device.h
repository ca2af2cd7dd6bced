#pragma once

#include "contract/device.h"

namespace dfa::cuda {

// The chosen GPU (chosen_device.h), which every call of it may throw for.
const Device& cuda_device();

}  // namespace dfa::cuda
