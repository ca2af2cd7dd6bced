#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "cuda/launcher.h"
#include "spec/plan_config.h"

namespace dfa::cuda {

// A plan of this backend on one device: its kernels loaded and their arguments filled in at the
// first call of a pass, so that planning compiles nothing. Thread-safe.
class ReadyCudaPlan final : public ReadyPlan {
 public:
  // config: what the plan says in text.
  ReadyCudaPlan(const Plan& plan, const PlanConfig& config, const gpu::Device& device);

  // The plan for another number of keys, if the same configuration is selected for that.
  std::optional<Plan> with_keys(const Problem& problem) const;

  bool current() const override;
  bool fits_context() const override;
  bool has_whole_device() const override;
  std::vector<std::string> warnings() const override;

  // Is it ready for this plan? A plan may have been changed since it was made.
  bool serves(const Plan& plan) const;

  const gpu::Device& device() const { return device_; }
  const Launcher<ForwardArgs>& forward() const;
  const Launcher<BackwardArgs>& backward() const;

 private:
  bool is_selected_for(const Problem& problem) const;

  Plan plan_;
  PlanConfig config_;
  const gpu::Device& device_;
  int sms_;  // that it may use there
  mutable std::once_flag forward_once_;
  mutable std::once_flag backward_once_;
  mutable ForwardLauncher forward_;
  mutable BackwardLauncher backward_;
};

// What the plan carries where that serves it; else, for a plan from a file, one that is made on the
// chosen device and remembered for a while.
std::shared_ptr<const ReadyCudaPlan> ready_plan(const Plan& plan);

}  // namespace dfa::cuda
