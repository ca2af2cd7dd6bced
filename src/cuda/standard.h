#pragma once

#include <string>

#include "cuda/launcher.h"
#include "dfa/error.h"

// Standard attention: products by cuBLASLt, the softmax by kernels of ours (standard_steps.h).
namespace dfa::cuda {

// The library of its matrix products with its version, or why there is none.
std::string standard_products();

Verdict standard_supports(const Problem& problem, const gpu::Device& device);

// Fills in what the passes of plan.problem need. Throws InvalidArgument for an
// options.config that is none of standard attention.
void plan_standard(Plan& plan, const PlanOptions& options, const gpu::Device& device);

ForwardLauncher standard_forward(const Plan& plan, const gpu::Device& device);
BackwardLauncher standard_backward(const Plan& plan, const gpu::Device& device);

}  // namespace dfa::cuda
