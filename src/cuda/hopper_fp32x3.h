#pragma once

#include "cuda/launcher.h"
#include "spec/config.h"

// Hopper's forward in fp32, by products of bf16 parts.
namespace dfa::cuda {

ForwardLauncher hopper_fp32x3_forward(const Problem& problem, const ForwardConfig& config,
                                      const gpu::Device& device);

}  // namespace dfa::cuda
