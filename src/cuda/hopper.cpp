#include "cuda/hopper.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "cuda/hopper_args.h"
#include "cuda/hopper_fp32x3.h"
#include "cuda/loaded_kernels.h"
#include "spec/e4m3.h"
#include "spec/fp32x3.h"

namespace dfa::cuda {
namespace {

class HopperForward final : public Launcher<ForwardArgs> {
 public:
  HopperForward(const Problem& p, const ForwardConfig& c, const gpu::Device& device, int sms)
      : args_(p, c),
        e4m3_(is_e4m3(c)),
        packs_values_(takes_packed_values(c)),
        paged_(c.paged),
        blocks_(c.blocks),
        split_(c.split_kv),
        device_(device),
        sms_(sms) {
    std::vector<KernelLaunch> launches = forward_launches(p, c);
    if (c.counted_tiles() && packs_values_) {
      lists_ = loaded_launch(device, launches[0]);
      lists_->shape.overlaps_previous = true;
      launches.erase(launches.begin());
    }
    if (c.counted_tiles() || packs_values_) {
      before_ = loaded_launch(device, launches[0]);
      before_->shape.overlaps_previous = true;
      launches.erase(launches.begin());
    }
    KernelLaunch launch = launches[0];
    cluster_ = launch.cluster;
    launch.grid = std::min(launch.grid, whole_clusters(sms));
    kernel_ = loaded_kernel(device, launch);
    shape_ = shape_of(launch);
    shape_.overlaps_previous = true;
    if (launches.size() > 1) {
      join_ = loaded_launch(device, launches[1]);
      join_->shape.overlaps_previous = true;
    }
  }

  void queue(const ForwardArgs& args, const gpu::Stream& stream, int sm_budget) const override {
    const gpu::Launch shape = sm_budget > 0 ? within(shape_, sm_budget) : shape_;
    const gpu::Scope scope(device_);  // one for all calls
    const auto blocks = static_cast<int>(shape.grid.x);
    if (e4m3_) {
      const Sm90E4m3Args all = args_.e4m3_with(args, blocks);
      if (lists_) gpu::launch(lists_->kernel, lists_->shape, stream, all.args);
      if (packs_values_) {
        gpu::launch(before_->kernel, before_->shape, stream, args_.pack_values(args));
      } else if (before_) {
        gpu::launch(before_->kernel, before_->shape, stream, all.args);
      }
      gpu::launch(kernel_, shape, stream, all);
      return;
    }
    if (split_) {
      const Sm90SplitForwardArgs all = args_.split_with(args, blocks);
      gpu::launch(before_->kernel, before_->shape, stream, args_.split_lists(args));
      gpu::launch(kernel_, shape, stream, all);
      gpu::launch(join_->kernel, join_->shape, stream, all);
      return;
    }
    if (paged_) {
      const Sm90PagedForwardArgs all = args_.paged_with(args, blocks);
      gpu::launch(before_->kernel, before_->shape, stream, all.args);
      gpu::launch(kernel_, shape, stream, all);
      return;
    }
    if (blocks_) {
      const Sm90BlocksForwardArgs all = args_.blocks_with(args, blocks);
      gpu::launch(before_->kernel, before_->shape, stream, all);
      gpu::launch(kernel_, shape, stream, all);
      return;
    }
    const Sm90ForwardArgs all = args_.with(args, blocks);
    if (before_) gpu::launch(before_->kernel, before_->shape, stream, all.args);
    gpu::launch(kernel_, shape, stream, all);
    if (join_) gpu::launch(join_->kernel, join_->shape, stream, all);
  }

 private:
  // The grid may have any size of whole clusters: it stays, and deals out its work tiles itself.
  // Part of a device is taken in clusters, so that blocks sit together: 576 W instead of 610 for
  // the same work on 64 of 132 multiprocessors of an H200. Up to three quarters clusters find room
  // side by side.
  gpu::Launch within(gpu::Launch shape, int sm_budget) const {
    constexpr unsigned kTogether = 4;
    shape.grid.x = std::min(shape.grid.x, whole_clusters(sm_budget));
    const auto all = static_cast<unsigned>(sms_);
    if (shape.grid.x % kTogether == 0 && 4 * shape.grid.x <= 3 * all) shape.cluster.x = kTogether;
    return shape;
  }

  // Blocks that so many multiprocessors take; a kernel of pairs takes two of one.
  unsigned whole_clusters(int sms) const {
    return std::max(cluster_, static_cast<unsigned>(sms) / cluster_ * cluster_);
  }

  HopperForwardArgs args_;
  bool e4m3_, packs_values_, paged_, blocks_, split_;
  const gpu::Device& device_;
  int sms_;
  gpu::Kernel kernel_;
  gpu::Launch shape_;
  unsigned cluster_ = 1;
  std::optional<LoadedLaunch> lists_;   // of packed sequences in e4m3, before that of v
  std::optional<LoadedLaunch> before_;  // of packed sequences, of v in e4m3, of lists of blocks
  std::optional<LoadedLaunch> join_;    // of shares of the keys
};

}  // namespace

ForwardLauncher hopper_forward(const Problem& p, const ForwardConfig& config,
                               const gpu::Device& device, int sms) {
  if (is_fp32x3(config)) return hopper_fp32x3_forward(p, config, device);
  return std::make_unique<const HopperForward>(p, config, device, sms);
}

}  // namespace dfa::cuda
