#include "cuda/ready_plan.h"

#include <algorithm>
#include <deque>

#include "cuda/chosen_device.h"
#include "cuda/flash.h"
#include "cuda/loaded_kernels.h"
#include "cuda/standard.h"
#include "cuda/standard_steps.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/flops.h"
#include "spec/passes.h"

namespace dfa::cuda {
namespace {

constexpr std::size_t kRemembered = 64;

// Those of plans that came without, the latest in front.
struct Remembered {
  std::mutex mutex;
  std::deque<std::shared_ptr<const ReadyCudaPlan>> plans;
};

// Never destroyed: the driver may be gone before static objects are.
Remembered& remembered() {
  static auto* const instance = new Remembered;
  return *instance;
}

// What the text of a plan says that came without.
PlanConfig config_of(const Plan& plan, const gpu::Device& device) {
  const Problem& p = plan.problem;
  if (plan.algorithm == Algorithm::standard) {
    return parse_standard_config(has_forward(p) ? plan.config : plan.backward_config);
  }
  const Limits limits = limits_of(device);
  FlashConfig config;
  if (has_forward(p)) config.forward = asked_forward(plan.config, with_pack_gqa(p), limits);
  if (has_backward(p)) config.backward = asked_backward(plan.backward_config, p, limits);
  return config;
}

}  // namespace

ReadyCudaPlan::ReadyCudaPlan(const Plan& plan, const PlanConfig& config, const gpu::Device& device)
    : plan_(plan), config_(config), device_(device), sms_(device.usable_sms()) {
  plan_.ready = {};  // else a changed plan keeps alive what it was made from
}

bool ReadyCudaPlan::is_selected_for(const Problem& problem) const {
  const auto* flash = std::get_if<FlashConfig>(&config_);
  if (flash == nullptr || plan_.origin != "default" || has_backward(problem) || problem.blocks) {
    return false;  // lists are told of by numbers of tiles
  }
  const Limits limits = limits_of(device_);
  const Problem p = with_pack_gqa(problem), planned = with_pack_gqa(plan_.problem);
  const ForwardConfig& config = *flash->forward;
  // Else the plan says why these kernels run, which may name the keys.
  if (config.target != limits.highest || p.hq != planned.hq) return false;
  return select_forward(p, limits) == config && validate_config(config, p, limits);
}

std::optional<Plan> ReadyCudaPlan::with_keys(const Problem& problem) const {
  if (!is_selected_for(problem)) return std::nullopt;
  const ForwardConfig& config = *std::get<FlashConfig>(config_).forward;
  Plan plan = plan_;
  plan.problem = problem;
  plan.forward_flops = forward_flops(problem);
  plan.workspace_bytes = flash_forward_bytes(with_pack_gqa(problem), config, limits_of(device_));
  plan.ready.plan = std::make_shared<const ReadyCudaPlan>(plan, config_, device_);
  return plan;
}

bool ReadyCudaPlan::current() const {
  try {
    return &chosen_device() == &device_ && fits_context();
  } catch (const Error&) {  // planning will say why
    return false;
  }
}

bool ReadyCudaPlan::fits_context() const { return device_.usable_sms() == sms_; }

bool ReadyCudaPlan::has_whole_device() const { return sms_ == device_.facts().sm_count; }

std::vector<std::string> ReadyCudaPlan::warnings() const {
  std::vector<std::string> list;
  const auto* flash = std::get_if<FlashConfig>(&config_);
  for (const KernelLaunch& launch : flash != nullptr ? flash_launches(plan_.problem, *flash)
                                                     : standard_launches(plan_.problem)) {
    std::string warning = loaded_warning(device_, launch);
    if (warning.empty()) continue;
    warning.insert(0, launch.name + std::string(": "));
    if (std::find(list.begin(), list.end(), warning) == list.end()) list.push_back(warning);
  }
  return list;
}

bool ReadyCudaPlan::serves(const Plan& plan) const { return runs_the_same(plan, plan_); }

const Launcher<ForwardArgs>& ReadyCudaPlan::forward() const {
  std::call_once(forward_once_, [this] {
    const Problem& p = plan_.problem;
    const auto* flash = std::get_if<FlashConfig>(&config_);
    forward_ = flash != nullptr ? flash_forward(p, flash->forward.value(), device_, sms_)
                                : standard_forward(p, std::get<StandardConfig>(config_), device_);
  });
  return *forward_;
}

const Launcher<BackwardArgs>& ReadyCudaPlan::backward() const {
  std::call_once(backward_once_, [this] {
    const Problem& p = plan_.problem;
    const auto* flash = std::get_if<FlashConfig>(&config_);
    backward_ = flash != nullptr ? flash_backward(p, flash->backward.value(), device_, sms_)
                                 : standard_backward(p, std::get<StandardConfig>(config_), device_);
  });
  return *backward_;
}

std::shared_ptr<const ReadyCudaPlan> ready_plan(const Plan& plan) {
  auto own = std::dynamic_pointer_cast<const ReadyCudaPlan>(plan.ready.plan);
  if (own != nullptr && own->serves(plan)) return own;
  const gpu::Device& device = chosen_device();
  const std::lock_guard lock(remembered().mutex);
  auto& plans = remembered().plans;
  const auto found = std::find_if(plans.begin(), plans.end(), [&](const auto& one) {
    return &one->device() == &device && one->current() && one->serves(plan);
  });
  if (found != plans.end()) return *found;
  plans.push_front(std::make_shared<const ReadyCudaPlan>(plan, config_of(plan, device), device));
  if (plans.size() > kRemembered) plans.pop_back();
  return plans.front();
}

}  // namespace dfa::cuda
