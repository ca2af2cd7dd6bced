#include "cuda/hopper_fp32x3_backward.h"

#include "cuda/hopper_args.h"
#include "cuda/loaded_kernels.h"
#include "gpu/buffer.h"

namespace dfa::cuda {
namespace {

// The planes of o and do, delta of them, the planes of q, k and v, then dk, dv and the sums of dq,
// then dq.
class HopperFp32x3Backward final : public Launcher<BackwardArgs> {
 public:
  HopperFp32x3Backward(const Problem& p, const BackwardConfig& c, const gpu::Device& device)
      : problem_(p), config_(c), device_(device), args_(p, c) {
    const std::vector<KernelLaunch> launches = backward_launches(p, c);
    row_planes_ = loaded_launch(device, launches.at(0));
    delta_ = loaded_launch(device, launches.at(1));
    planes_ = loaded_launch(device, launches.at(2));
    keys_ = loaded_launch(device, launches.at(3));
    dq_ = loaded_launch(device, launches.at(4));
    zeroed_ = launches[3].zeroed;
  }

  void queue(const BackwardArgs& args, const gpu::Stream& stream, int) const override {
    const BackwardPlanes split = fp32x3_planes_args(problem_, config_, args);
    const gpu::Scope scope(device_);  // one for all calls
    const Sm90Fp32x3BackwardArgs all = args_.with(args, split);
    gpu::launch(row_planes_.kernel, row_planes_.shape, stream, split.rows);
    gpu::launch(delta_.kernel, delta_.shape, stream, args_.delta(args, split));
    gpu::launch(planes_.kernel, planes_.shape, stream, split.inputs);
    gpu::fill(stream, static_cast<char*>(args.workspace) + zeroed_.offset, 0, zeroed_.bytes);
    gpu::launch(keys_.kernel, keys_.shape, stream, all);
    gpu::launch(dq_.kernel, dq_.shape, stream, all.args);
  }

 private:
  Problem problem_;
  BackwardConfig config_;
  const gpu::Device& device_;
  HopperFp32x3BackwardArgs args_;
  LoadedLaunch row_planes_, delta_, planes_, keys_, dq_;
  ZeroedBytes zeroed_;
};

}  // namespace

BackwardLauncher hopper_fp32x3_backward(const Problem& p, const BackwardConfig& c,
                                        const gpu::Device& device) {
  return std::make_unique<const HopperFp32x3Backward>(p, c, device);
}

}  // namespace dfa::cuda
