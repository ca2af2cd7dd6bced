#pragma once

#include "cuda/launcher.h"

// The forward with Hopper's own kernel (cuda_sm90).
namespace dfa::cuda {

bool is_hopper(const Plan& plan);

// Requires is_hopper(plan).
ForwardLauncher hopper_forward(const Plan& plan, const gpu::Device& device);

}  // namespace dfa::cuda
