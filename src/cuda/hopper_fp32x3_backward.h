#pragma once

#include "cuda/launcher.h"
#include "spec/config.h"

// Hopper's backward in fp32, by products of bf16 parts.
namespace dfa::cuda {

BackwardLauncher hopper_fp32x3_backward(const Problem& problem, const BackwardConfig& config,
                                        const gpu::Device& device);

}  // namespace dfa::cuda
