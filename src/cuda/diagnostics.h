#pragma once

#include "contract/diagnostics.h"

namespace dfa::cuda {

// Of the chosen GPU (chosen_device.h).
const Diagnostics& cuda_diagnostics();

}  // namespace dfa::cuda
