#include "cuda/ready_plan.h"

#include <algorithm>
#include <deque>

#include "cuda/chosen_device.h"
#include "cuda/hopper.h"
#include "cuda/hopper_backward.h"
#include "cuda/loaded_kernels.h"
#include "cuda/portable.h"
#include "cuda/standard.h"
#include "cuda/standard_steps.h"

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

bool is_standard(const Plan& plan) { return plan.algorithm == Algorithm::standard; }

}  // namespace

ReadyCudaPlan::ReadyCudaPlan(const Plan& plan, const gpu::Device& device)
    : plan_(plan), device_(device), sms_(device.usable_sms()) {
  plan_.ready = {};  // else a changed plan keeps alive what it was made from
}

bool ReadyCudaPlan::current() const {
  try {
    return &chosen_device() == &device_ && fits_context();
  } catch (const Error&) {  // planning will say why
    return false;
  }
}

bool ReadyCudaPlan::fits_context() const { return device_.usable_sms() == sms_; }

std::vector<std::string> ReadyCudaPlan::warnings() const {
  std::vector<std::string> list;
  for (const KernelLaunch& launch :
       is_standard(plan_) ? standard_launches(plan_.problem) : portable_launches(plan_, device_)) {
    std::string warning = loaded_warning(device_, launch);
    if (warning.empty()) continue;
    warning.insert(0, launch.name + std::string(": "));
    if (std::find(list.begin(), list.end(), warning) == list.end()) list.push_back(warning);
  }
  return list;
}

bool ReadyCudaPlan::serves(const Plan& plan) const {
  return plan.problem == plan_.problem && plan.algorithm == plan_.algorithm &&
         plan.config == plan_.config && plan.backward_config == plan_.backward_config;
}

const Launcher<ForwardArgs>& ReadyCudaPlan::forward() const {
  std::call_once(forward_once_, [this] {
    forward_ = is_standard(plan_) ? standard_forward(plan_, device_)
               : is_hopper(plan_) ? hopper_forward(plan_, device_, sms_)
                                  : portable_forward(plan_, device_);
  });
  return *forward_;
}

const Launcher<BackwardArgs>& ReadyCudaPlan::backward() const {
  std::call_once(backward_once_, [this] {
    backward_ = is_standard(plan_)          ? standard_backward(plan_, device_)
                : is_hopper_backward(plan_) ? hopper_backward(plan_, device_, sms_)
                                            : portable_backward(plan_, device_);
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
  plans.push_front(std::make_shared<const ReadyCudaPlan>(plan, device));
  if (plans.size() > kRemembered) plans.pop_back();
  return plans.front();
}

}  // namespace dfa::cuda
