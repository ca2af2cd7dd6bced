#include "cuda/flash.h"

#include <algorithm>
#include <mutex>

#include "cuda/chosen_device.h"
#include "cuda/hopper.h"
#include "cuda/launch_list.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/select_split_kv.h"
#include "plan/validate.h"
#include "spec/block_tiles.h"
#include "spec/config_names.h"
#include "spec/config_text.h"
#include "spec/e4m3.h"
#include "spec/fp32x3.h"
#include "spec/passes.h"

namespace dfa::cuda {
namespace {

// Those of a pass, with the reason where they are not the architecture's own.
template <typename Config>
std::string kernels_of(const Config& c, bool forced, const Problem& p, const Limits& limits,
                       Verdict (*fits)(const Problem&, const Limits&)) {
  const std::string name = name_of(c.target);
  if (forced || c.target == limits.highest) return name;
  const Verdict own = fits(p, limits);
  return name + " (as " + (own ? "split-KV serves it" : own.reason) + ")";
}

std::string kernels_of(const FlashConfig& c, bool forced, const Problem& p, const Limits& limits) {
  std::string text;
  if (c.forward) text = kernels_of(*c.forward, forced, p, limits, &sm90_fits);
  if (!c.backward || (c.forward && c.forward->target == c.backward->target)) return text;
  return text + (c.forward ? " and, backward, " : "") +
         kernels_of(*c.backward, forced, p, limits, &sm90_backward_fits);
}

std::string splits_of(const Problem& p, const ForwardConfig& c) {
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  if (c.num_splits == 0) return "";
  if (!c.split_kv) {
    return "; keys of the last query tiles are dealt out in " + text(c.num_splits) +
           " shares, which a second kernel joins";
  }
  if (p.num_splits == 1) return "; keys are not split";
  if (c.split_keys > 0) return "; splits of " + text(c.split_keys) + " keys, whatever the company";
  return "; keys are dealt out by the lengths, on the device, to " + text(c.num_splits) +
         " blocks of each head" +
         (p.num_splits > 0 ? ", a tile's in " + text(p.num_splits) + " splits at most" : "");
}

// Hopper's tiles of keys begin where pages do, so calls that say where keys begin in them
// (leftpad_k) have the portable kernel.
bool leaves_left_padding(const ForwardConfig& c) {
  return c.target == Target::cuda_sm90 && c.paged;
}

ForwardConfig of_left_padding(const Problem& p, Limits limits) {
  limits.highest = Target::cuda_sm80;
  return select_forward(p, limits);
}

class LeftPadded final : public Launcher<ForwardArgs> {
 public:
  LeftPadded(ForwardLauncher usual, const Problem& p, const gpu::Device& device, int sms)
      : usual_(std::move(usual)), problem_(p), device_(device), sms_(sms) {}

  void queue(const ForwardArgs& args, const gpu::Stream& stream, int sm_budget) const override {
    if (args.sequences.leftpad_k == nullptr) return usual_->queue(args, stream, sm_budget);
    padded().queue(args, stream, 0);
  }

 private:
  // Most are never asked for.
  const Launcher<ForwardArgs>& padded() const {
    std::call_once(once_, [this] {
      padded_ =
          flash_forward(problem_, of_left_padding(problem_, limits_of(device_)), device_, sms_);
    });
    return *padded_;
  }

  ForwardLauncher usual_;
  Problem problem_;
  const gpu::Device& device_;
  int sms_;
  mutable std::once_flag once_;
  mutable ForwardLauncher padded_;
};

}  // namespace

Verdict flash_supports(const Problem& p, const Limits& limits) {
  if (has_forward(p)) {
    if (const Verdict ok = validate_config(select_forward(p, limits), p, limits); !ok) return ok;
  }
  return has_backward(p) ? backward_fits(p, limits) : Verdict::yes();
}

FlashConfig asked_flash(const Problem& problem, const std::string& text, const Limits& limits) {
  const Problem p = with_pack_gqa(problem);
  FlashConfig config;
  if (has_backward(p)) config.backward = asked_backward(text, p, limits);
  if (has_forward(p)) config.forward = asked_forward(text, p, limits);
  if (config.forward && config.backward) {
    const Verdict fits = validate_pair(*config.forward, *config.backward);
    if (!fits) throw InvalidArgument("config: " + fits.reason);
  }
  return config;
}

void describe_flash(Plan& plan, const FlashConfig& config, bool forced, const gpu::Device& device) {
  const Problem p = with_pack_gqa(plan.problem);
  const Limits limits = limits_of(device);
  std::int64_t heads = plan.problem.hq / p.hq;
  plan.why =
      "FlashAttention with " + kernels_of(config, forced, p, limits) + " kernels on " +
      device.facts().name +
      (forced ? ", tile as asked for" : ", the default tile for this element type and head dim");
  if (config.forward) {
    const ForwardConfig& c = *config.forward;
    plan.config = to_text(c);
    plan.workspace_bytes = flash_forward_bytes(p, c, limits);
    if (c.kv_e4m3) plan.why += "; keys and values in e4m3 are widened to fp16 in the kernel";
    if (c.transpose_values) plan.why += "; v is transposed in the kernel";
    if (takes_packed_values(c)) {
      plan.why += "; v is transposed into the workspace by a kernel before";
    }
    if (c.target == Target::cuda_sm90 && !is_fp32x3(c)) plan.forward_sms = limits.sm_count;
    heads *= c.pack_gqa;
    if (leaves_left_padding(c)) {
      plan.why += "; calls with leftpad_k take " + to_text(of_left_padding(p, limits));
    }
  }
  if (config.backward) {
    plan.backward_config = to_text(*config.backward);
    plan.workspace_bytes =
        std::max(plan.workspace_bytes, backward_workspace_bytes(p, *config.backward));
  }
  plan.why += rows_of_heads(heads);
  if (config.forward) {
    plan.why += skipped_tiles(p, config.forward->block_q, config.forward->block_k);
  } else if (config.backward) {
    plan.why += skipped_tiles(p, config.backward->block_q, config.backward->block_k);
  }
  if (config.forward) plan.why += splits_of(p, *config.forward);
}

std::size_t flash_forward_bytes(const Problem& p, const ForwardConfig& c, const Limits& limits) {
  const std::size_t usual = forward_workspace_bytes(p, c);
  if (!leaves_left_padding(c)) return usual;
  return std::max(usual, forward_workspace_bytes(p, of_left_padding(p, limits)));
}

std::vector<KernelLaunch> flash_launches(const Problem& problem, const FlashConfig& config) {
  const Problem p = with_pack_gqa(problem);
  std::vector<KernelLaunch> launches;
  if (config.forward) launches = forward_launches(p, *config.forward);
  if (!config.backward) return launches;
  for (KernelLaunch& launch : backward_launches(p, *config.backward)) {
    launches.push_back(std::move(launch));
  }
  return launches;
}

ForwardLauncher flash_forward(const Problem& problem, const ForwardConfig& config,
                              const gpu::Device& device, int sms) {
  const Problem p = with_pack_gqa(problem);
  if (config.target == Target::cuda_sm90) {
    ForwardLauncher hopper = hopper_forward(p, config, device, sms);
    if (!leaves_left_padding(config)) return hopper;
    return std::make_unique<const LeftPadded>(std::move(hopper), p, device, sms);
  }
  if (config.split_kv) {
    return std::make_unique<const LaunchList<ForwardArgs, SplitKvForwardArgs>>(
        device, forward_launches(p, config), split_kv_args(p, config),
        limits_of(device).highest == Target::cuda_sm90);
  }
  if (config.blocks) {
    return std::make_unique<const LaunchList<ForwardArgs, BlockKernelArgs>>(
        device, forward_launches(p, config), block_kernel_args(p, kernel_args(p, config)));
  }
  return std::make_unique<const LaunchList<ForwardArgs>>(device, forward_launches(p, config),
                                                         kernel_args(p, config));
}

BackwardLauncher flash_backward(const Problem& p, const BackwardConfig& config,
                                const gpu::Device& device, int sms) {
  if (config.target == Target::cuda_sm90) return hopper_backward(p, config, device, sms);
  if (config.blocks) {
    return std::make_unique<const LaunchList<BackwardArgs, BlockKernelArgs>>(
        device, backward_launches(p, config), block_kernel_args(p, kernel_args(p, config)));
  }
  return std::make_unique<const LaunchList<BackwardArgs>>(device, backward_launches(p, config),
                                                          kernel_args(p, config));
}

}  // namespace dfa::cuda
