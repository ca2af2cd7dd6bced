#pragma once

#include <vector>

#include "cuda/launcher.h"
#include "kernels/launch.h"
#include "spec/limits.h"

// FlashAttention with the portable kernels, sm_80 and up.
namespace dfa::cuda {

Verdict portable_supports(const Problem& problem, const Limits& limits);

// Fills in what the passes of plan.problem need. Throws InvalidArgument for an illegal
// options.config.
void plan_flash(Plan& plan, const PlanOptions& options, const gpu::Device& device);

// The kernels that a plan runs which is not of standard attention.
std::vector<KernelLaunch> portable_launches(const Plan& plan, const gpu::Device& device);

ForwardLauncher portable_forward(const Plan& plan, const gpu::Device& device);
BackwardLauncher portable_backward(const Plan& plan, const gpu::Device& device);

}  // namespace dfa::cuda
