#include "cuda/hopper_backward.h"

#include "cuda/hopper_tensor.h"
#include "cuda/loaded_kernels.h"
#include "gpu/buffer.h"
#include "kernels/backward/sm90_args.h"
#include "spec/config_text.h"
#include "spec/legality.h"

namespace dfa::cuda {
namespace {

// Key heads whose blocks run at once. With 8, q, do and the sums of dq of one are read and added to
// by 16 blocks before they leave the L2; blocks of more than that wait for each other's turns.
constexpr int kHeadsAtOnce = 8;

// delta and lse of the rows, then dk, dv and the sums of dq, then dq.
class HopperBackward final : public Launcher<BackwardArgs> {
 public:
  HopperBackward(const Problem& p, const BackwardConfig& c, const gpu::Device& device)
      : q_(hopper_tensor(p, p.q(), p.hq, p.sq, p.d, c.block_q)),
        k_(hopper_tensor(p, p.k(), p.hk, p.sk, p.d, c.block_k)),
        v_(hopper_tensor(p, p.v(), p.hk, p.sk, p.dv, c.block_k)),
        d_o_(hopper_tensor(p, p.o(), p.hq, p.sq, p.dv, c.block_q)),
        dk_(hopper_tensor(p, p.k(), p.hk, p.sk, p.d, kGradientBoxRows)),
        dv_(hopper_tensor(p, p.v(), p.hk, p.sk, p.dv, kGradientBoxRows)),
        device_(device),
        args_(kernel_args(p)) {
    args_.heads_at_once = kHeadsAtOnce;
    const std::vector<KernelLaunch> launches = backward_launches(p, c);
    rows_ = loaded_launch(device, launches.at(0));
    keys_ = loaded_launch(device, launches.at(1));
    dq_ = loaded_launch(device, launches.at(2));
    zeroed_ = launches[1].zeroed;
  }

  void queue(const BackwardArgs& args, const gpu::Stream& stream, int) const override {
    Sm90BackwardArgs all;
    all.args = with_pointers(args_, args);
    {
      const gpu::Scope scope(device_);  // one for all calls
      encode(q_, args.q, all.q);
      encode(k_, args.k, all.k);
      encode(v_, args.v, all.v);
      encode(d_o_, args.d_o, all.d_o);
      encode(dk_, args.dk, all.dk);
      encode(dv_, args.dv, all.dv);
    }
    gpu::launch(rows_.kernel, rows_.shape, stream, all.args);
    gpu::fill(stream, static_cast<char*>(args.workspace) + zeroed_.offset, 0, zeroed_.bytes);
    gpu::launch(keys_.kernel, keys_.shape, stream, all);
    gpu::launch(dq_.kernel, dq_.shape, stream, all.args);
  }

 private:
  gpu::TiledTensor q_, k_, v_, d_o_, dk_, dv_;
  const gpu::Device& device_;
  KernelArgs args_;
  LoadedLaunch rows_, keys_, dq_;
  ZeroedBytes zeroed_;
};

}  // namespace

bool is_hopper_backward(const Plan& plan) {
  return !plan.backward_config.empty() &&
         parse_config(plan.backward_config, BackwardConfig{}).target == Target::cuda_sm90;
}

BackwardLauncher hopper_backward(const Plan& plan, const gpu::Device& device) {
  const Problem& p = plan.problem;
  const Limits limits = gpu_limits(device.facts().capability);
  const BackwardConfig config = legal_config(
      plan.backward_config, gpu_backward_base(plan.backward_config, p, limits), p, limits);
  return std::make_unique<const HopperBackward>(p, config, device);
}

}  // namespace dfa::cuda
