#pragma once

#include "cuda/launcher.h"

// The forward with Hopper's own kernel (cuda_sm90).
namespace dfa::cuda {

bool is_hopper(const Plan& plan);

// Requires is_hopper(plan). sms: multiprocessors that its grid is for.
ForwardLauncher hopper_forward(const Plan& plan, const gpu::Device& device, int sms);

}  // namespace dfa::cuda
