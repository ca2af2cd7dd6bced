#include "cuda/hopper_fp32x3.h"

#include "cuda/hopper_args.h"
#include "cuda/loaded_kernels.h"

namespace dfa::cuda {
namespace {

// The planes of q, k and v, then attention.
class HopperFp32x3Forward final : public Launcher<ForwardArgs> {
 public:
  HopperFp32x3Forward(const Problem& p, const ForwardConfig& c, const gpu::Device& device)
      : problem_(p), device_(device), args_(p, c) {
    const std::vector<KernelLaunch> launches = forward_launches(p, c);
    planes_ = loaded_launch(device, launches.at(0));
    forward_ = loaded_launch(device, launches.at(1));
  }

  void queue(const ForwardArgs& args, const gpu::Stream& stream, int) const override {
    const Fp32x3PlanesArgs split = fp32x3_planes_args(problem_, args);
    const gpu::Scope scope(device_);  // one for all calls
    gpu::launch(planes_.kernel, planes_.shape, stream, split);
    gpu::launch(forward_.kernel, forward_.shape, stream, args_.with(args, split));
  }

 private:
  Problem problem_;
  const gpu::Device& device_;
  HopperFp32x3Args args_;
  LoadedLaunch planes_, forward_;
};

}  // namespace

ForwardLauncher hopper_fp32x3_forward(const Problem& p, const ForwardConfig& c,
                                      const gpu::Device& device) {
  return std::make_unique<const HopperFp32x3Forward>(p, c, device);
}

}  // namespace dfa::cuda
