#pragma once

#include "cuda/launcher.h"

// The backward with Hopper's own kernels (cuda_sm90).
namespace dfa::cuda {

bool is_hopper_backward(const Plan& plan);

// Requires is_hopper_backward(plan). sms: multiprocessors that its grid is for.
BackwardLauncher hopper_backward(const Plan& plan, const gpu::Device& device, int sms);

}  // namespace dfa::cuda
