#pragma once

#include <vector>

#include "cuda/launcher.h"
#include "kernels/launch.h"
#include "spec/limits.h"
#include "spec/plan_config.h"

// FlashAttention by Hopper's own kernels and by portable ones.
namespace dfa::cuda {

Verdict flash_supports(const Problem& problem, const Limits& limits);

// What the passes of the problem run: selected, or asked for by the text. Throws InvalidArgument
// for an illegal one.
FlashConfig asked_flash(const Problem& problem, const std::string& text, const Limits& limits);

// Fills in what the passes of plan.problem need. forced: the configuration was asked for.
void describe_flash(Plan& plan, const FlashConfig& config, bool forced, const gpu::Device& device);

// Workspace of a forward, also of calls with leftpad_k.
std::size_t flash_forward_bytes(const Problem& problem, const ForwardConfig& config,
                                const Limits& limits);

// The kernels that run it.
std::vector<KernelLaunch> flash_launches(const Problem& problem, const FlashConfig& config);

// sms: multiprocessors that grids are for.
ForwardLauncher flash_forward(const Problem& problem, const ForwardConfig& config,
                              const gpu::Device& device, int sms);
BackwardLauncher flash_backward(const Problem& problem, const BackwardConfig& config,
                                const gpu::Device& device, int sms);

}  // namespace dfa::cuda
