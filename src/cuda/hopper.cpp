#include "cuda/hopper.h"

#include <algorithm>

#include "cuda/hopper_split.h"
#include "cuda/hopper_tensor.h"
#include "cuda/loaded_kernels.h"
#include "kernels/forward/sm90_args.h"
#include "spec/config_text.h"
#include "spec/legality.h"
#include "spec/sm90_split_legality.h"

namespace dfa::cuda {
namespace {

class HopperForward final : public Launcher<ForwardArgs> {
 public:
  HopperForward(const Problem& p, const ForwardConfig& c, const gpu::Device& device)
      : q_(hopper_tensor(p, p.q(), p.hq, p.sq, p.d, kQBoxRows)),
        k_(hopper_tensor(p, p.k(), p.hk, p.sk, p.d, c.block_k)),
        v_(hopper_tensor(p, p.v(), p.hk, p.sk, p.dv, c.block_k)),
        o_(hopper_tensor(p, p.o(), p.hq, p.sq, p.dv, kOBoxRows)),
        problem_(p),
        config_(c),
        device_(device) {
    KernelLaunch launch = forward_launches(p, c)[0];
    launch.grid = std::min(launch.grid, static_cast<unsigned>(device.facts().sm_count));
    kernel_ = loaded_kernel(device, launch);
    shape_ = shape_of(launch);
    args_.args = kernel_args(p);
  }

  void queue(const ForwardArgs& args, const gpu::Stream& stream, int sm_budget) const override {
    Sm90ForwardArgs all = args_;
    all.args = with_pointers(args_.args, args);
    const gpu::Scope scope(device_);  // one for all five calls
    encode(q_, args.q, all.q);
    encode(k_, args.k, all.k);
    encode(v_, args.v, all.v);
    encode(o_, args.o, all.o);
    const gpu::Launch shape = sm_budget > 0 ? within(shape_, sm_budget) : shape_;
    all.items = forward_items(problem_, config_, static_cast<int>(shape.grid.x));
    gpu::launch(kernel_, shape, stream, all);
  }

 private:
  // The grid may have any size: it stays, and deals out its items itself. Part of a device is taken
  // in clusters, so that blocks sit together: 576 W instead of 610 for the same work on 64 of 132
  // multiprocessors of an H200. Up to three quarters clusters find room side by side.
  gpu::Launch within(gpu::Launch shape, int sm_budget) const {
    constexpr unsigned kTogether = 4;
    shape.grid.x = std::min(shape.grid.x, static_cast<unsigned>(sm_budget));
    const auto all = static_cast<unsigned>(device_.facts().sm_count);
    if (shape.grid.x % kTogether == 0 && 4 * shape.grid.x <= 3 * all) shape.cluster.x = kTogether;
    return shape;
  }

  gpu::TiledTensor q_, k_, v_, o_;
  Problem problem_;
  ForwardConfig config_;
  const gpu::Device& device_;
  gpu::Kernel kernel_;
  gpu::Launch shape_;
  Sm90ForwardArgs args_{};
};

}  // namespace

bool is_hopper(const Plan& plan) {
  return !plan.config.empty() &&
         parse_config(plan.config, ForwardConfig{}).target == Target::cuda_sm90;
}

ForwardLauncher hopper_forward(const Plan& plan, const gpu::Device& device) {
  const Problem& p = plan.problem;
  const Limits limits = gpu_limits(device.facts().capability);
  const ForwardConfig config =
      legal_config(plan.config, gpu_forward_base(plan.config, p, limits), p, limits);
  if (is_split(config)) return hopper_split_forward(p, config, device);
  return std::make_unique<const HopperForward>(p, config, device);
}

}  // namespace dfa::cuda
