#pragma once

#include <string>

#include "cuda/launcher.h"
#include "dfa/error.h"
#include "spec/standard_config.h"

// Standard attention: products by cuBLASLt, the softmax by kernels of ours (standard_steps.h).
namespace dfa::cuda {

// The library of its matrix products with its version, or why there is none.
std::string standard_products();

Verdict standard_supports(const Problem& problem, const gpu::Device& device);

// Fills in what the passes of plan.problem need.
void describe_standard(Plan& plan, const StandardConfig& config, const gpu::Device& device);

ForwardLauncher standard_forward(const Problem& problem, const StandardConfig& config,
                                 const gpu::Device& device);
BackwardLauncher standard_backward(const Problem& problem, const StandardConfig& config,
                                   const gpu::Device& device);

}  // namespace dfa::cuda
