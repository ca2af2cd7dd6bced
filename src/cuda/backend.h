#pragma once

#include "contract/backend.h"

namespace dfa {

// The CUDA backend: FlashAttention on one NVIDIA GPU, the device that DFA_CUDA_DEVICE names. In a
// build without CUDA, src/cuda_absent defines it: available() then says why not.
const Backend& cuda_backend();

}  // namespace dfa
