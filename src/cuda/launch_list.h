#pragma once

#include <utility>
#include <vector>

#include "cuda/launcher.h"
#include "cuda/loaded_kernels.h"
#include "gpu/buffer.h"
#include "kernels/launch.h"

namespace dfa::cuda {

// Kernels that all take the same arguments, one after the other. `overlaps`: each waits itself for
// what the one before it wrote (griddepcontrol_wait), so that it may start while that one ends.
template <class Args, class All = KernelArgs>
class LaunchList final : public Launcher<Args> {
 public:
  LaunchList(const gpu::Device& device, const std::vector<KernelLaunch>& launches, const All& args,
             bool overlaps = false)
      : args_(args) {
    for (const KernelLaunch& launch : launches) {
      steps_.push_back({loaded_kernel(device, launch), shape_of(launch), launch.zeroed});
      steps_.back().shape.overlaps_previous = overlaps;
    }
  }

  void queue(const Args& args, const gpu::Stream& stream, int) const override {
    const All all = with_pointers(args_, args);
    for (const Entry& step : steps_) {
      if (step.zeroed.bytes > 0) {
        gpu::fill(stream, static_cast<char*>(args.workspace) + step.zeroed.offset, 0,
                  step.zeroed.bytes);
      }
      gpu::launch(step.kernel, step.shape, stream, all);
    }
  }

 private:
  struct Entry {
    gpu::Kernel kernel;
    gpu::Launch shape;
    ZeroedBytes zeroed;
  };

  All args_;
  std::vector<Entry> steps_;
};

}  // namespace dfa::cuda
