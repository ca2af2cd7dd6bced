#include "cuda/portable.h"

#include <algorithm>

#include "cuda/chosen_device.h"
#include "cuda/launch_list.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/fp32x3.h"
#include "spec/limits.h"
#include "spec/passes.h"

namespace dfa::cuda {
namespace {

ForwardConfig forward_config(const Problem& p, const std::string& text, const Limits& limits) {
  return legal_config(text, gpu_forward_base(text, p, limits), p, limits);
}

BackwardConfig backward_config(const Problem& p, const std::string& text, const Limits& limits) {
  return legal_config(text, gpu_backward_base(text, p, limits), p, limits);
}

void require_pair(const Problem& p, const std::string& text, const Limits& limits) {
  const Verdict fits =
      validate_pair(forward_config(p, text, limits), backward_config(p, text, limits));
  if (!fits) throw InvalidArgument("config: " + fits.reason);
}

// Why portable kernels run.
std::string as(const Verdict& hopper) { return " (as " + hopper.reason + ")"; }

}  // namespace

Verdict portable_supports(const Problem& p, const Limits& limits) {
  if (has_forward(p)) {
    if (const Verdict ok = validate_config(select_forward(p, limits), p, limits); !ok) return ok;
  }
  if (has_backward(p)) {
    if (const Verdict ok = validate_config(select_backward(p, limits), p, limits); !ok) return ok;
  }
  return Verdict::yes();
}

void plan_flash(Plan& plan, const PlanOptions& options, const gpu::Device& device) {
  const Problem p = with_pack_gqa(plan.problem);
  const Limits limits = limits_of(device);
  if (p.pass == Pass::forward_backward) require_pair(p, options.config, limits);
  std::string kernels;
  std::int64_t packed = plan.problem.hq / p.hq;
  int shares = 0;
  if (has_forward(p)) {
    const ForwardConfig config = forward_config(p, options.config, limits);
    plan.config = to_text(config);
    kernels = name_of(config.target);
    packed *= config.pack_gqa;
    shares = config.num_splits;
    plan.workspace_bytes = forward_workspace_bytes(p, config);
    if (config.target == Target::cuda_sm90 && !is_fp32x3(config))
      plan.forward_sms = limits.sm_count;
    if (options.config.empty() && config.target != limits.highest) {
      kernels += as(sm90_fits(p, limits));
    }
  }
  if (has_backward(p)) {
    const BackwardConfig config = backward_config(p, options.config, limits);
    plan.backward_config = to_text(config);
    plan.workspace_bytes = std::max(plan.workspace_bytes, backward_workspace_bytes(p, config));
    if (!has_forward(p) || plan.config.find(name_of(config.target)) == std::string::npos) {
      if (has_forward(p)) kernels += " and, backward, ";
      kernels += name_of(config.target);
      if (options.config.empty() && config.target != limits.highest) {
        kernels += as(sm90_backward_fits(p, limits));
      }
    }
  }
  plan.why = "FlashAttention with " + kernels + " kernels on " + device.facts().name +
             (options.config.empty() ? ", the default tile for this element type and head dim"
                                     : ", tile as asked for") +
             rows_of_heads(packed);
  if (shares > 0) {
    plan.why += "; keys of the last query tiles are dealt out in " + std::to_string(shares) +
                " shares, which a second kernel joins";
  }
}

std::vector<KernelLaunch> portable_launches(const Plan& plan, const gpu::Device& device) {
  const Problem p = with_pack_gqa(plan.problem);
  const Limits limits = limits_of(device);
  std::vector<KernelLaunch> launches;
  if (has_forward(p)) launches = forward_launches(p, forward_config(p, plan.config, limits));
  if (!has_backward(p)) return launches;
  const BackwardConfig config = backward_config(p, plan.backward_config, limits);
  for (KernelLaunch& launch : backward_launches(p, config)) launches.push_back(std::move(launch));
  return launches;
}

ForwardLauncher portable_forward(const Plan& plan, const gpu::Device& device) {
  const Problem p = with_pack_gqa(plan.problem);
  const ForwardConfig config = forward_config(p, plan.config, limits_of(device));
  return std::make_unique<const LaunchList<ForwardArgs>>(device, forward_launches(p, config),
                                                         kernel_args(p, config));
}

BackwardLauncher portable_backward(const Plan& plan, const gpu::Device& device) {
  const Problem& p = plan.problem;
  const BackwardConfig config = backward_config(p, plan.backward_config, limits_of(device));
  return std::make_unique<const LaunchList<BackwardArgs>>(device, backward_launches(p, config),
                                                          kernel_args(p, config));
}

}  // namespace dfa::cuda
