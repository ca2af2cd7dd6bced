#pragma once

#include "cuda/launcher.h"
#include "spec/config.h"

// Passes by Hopper's own kernels (cuda_sm90). sms: multiprocessors that their grids are for.
namespace dfa::cuda {

ForwardLauncher hopper_forward(const Problem& problem, const ForwardConfig& config,
                               const gpu::Device& device, int sms);
BackwardLauncher hopper_backward(const Problem& problem, const BackwardConfig& config,
                                 const gpu::Device& device, int sms);

}  // namespace dfa::cuda
