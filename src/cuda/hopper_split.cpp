#include "cuda/hopper_split.h"

#include "cuda/hopper_tensor.h"
#include "cuda/loaded_kernels.h"
#include "kernels/forward/sm90_split_args.h"

namespace dfa::cuda {
namespace {

// The planes of a tensor as one of bf16 with three times the batch.
gpu::TiledTensor planes_of(Problem p, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                           int box_rows) {
  p.b *= kPlanes;
  p.dtype = DType::bf16;
  const Strides dense{.batch = heads * rows * columns, .head = rows * columns, .row = columns};
  return hopper_tensor(p, dense, heads, rows, columns, box_rows);
}

// The planes of q, k and v, then attention.
class HopperSplitForward final : public Launcher<ForwardArgs> {
 public:
  HopperSplitForward(const Problem& p, const ForwardConfig& c, const gpu::Device& device)
      : problem_(p),
        q_(planes_of(p, p.hq, p.sq, p.d, kGroupRows)),
        k_(planes_of(p, p.hk, p.sk, p.d, c.block_k)),
        v_(planes_of(p, p.hk, p.sk, p.dv, c.block_k)),
        device_(device),
        args_(kernel_args(p)) {
    const std::vector<KernelLaunch> launches = forward_launches(p, c);
    planes_ = loaded_launch(device, launches.at(0));
    forward_ = loaded_launch(device, launches.at(1));
  }

  void queue(const ForwardArgs& args, const gpu::Stream& stream, int) const override {
    const SplitArgs split = split_args(problem_, args);
    Sm90SplitArgs all;
    all.args = with_pointers(args_, args);
    {
      const gpu::Scope scope(device_);  // one for all calls
      encode(q_, split.tensors[0].planes, all.q);
      encode(k_, split.tensors[1].planes, all.k);
      encode(v_, split.tensors[2].planes, all.v);
    }
    gpu::launch(planes_.kernel, planes_.shape, stream, split);
    gpu::launch(forward_.kernel, forward_.shape, stream, all);
  }

 private:
  Problem problem_;
  gpu::TiledTensor q_, k_, v_;
  const gpu::Device& device_;
  KernelArgs args_;
  LoadedLaunch planes_, forward_;
};

}  // namespace

ForwardLauncher hopper_split_forward(const Problem& p, const ForwardConfig& c,
                                     const gpu::Device& device) {
  return std::make_unique<const HopperSplitForward>(p, c, device);
}

}  // namespace dfa::cuda
