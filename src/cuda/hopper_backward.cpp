#include <optional>
#include <vector>

#include "cuda/hopper.h"
#include "cuda/hopper_args.h"
#include "cuda/hopper_fp32x3_backward.h"
#include "cuda/loaded_kernels.h"
#include "gpu/buffer.h"
#include "plan/schedule.h"
#include "spec/bias.h"
#include "spec/fp32x3.h"

namespace dfa::cuda {
namespace {

// delta and lse of the rows, then dk, dv and the sums of dq, then dq where it is not yet rounded.
class HopperBackward final : public Launcher<BackwardArgs> {
 public:
  HopperBackward(const Problem& p, const BackwardConfig& c, const gpu::Device& device, int sms)
      : device_(device), args_(p, c, sms), blocks_(c.blocks) {
    std::vector<KernelLaunch> launches = backward_launches(p, c);
    if (c.varlen) {
      tiles_ = loaded_launch(device, launches[0]);
      launches.erase(launches.begin());
    }
    rows_ = loaded_launch(device, launches.at(0));
    if (p.sink) {
      sinks_ = loaded_launch(device, launches.at(1));
      sinks_->shape.overlaps_previous = true;
      launches.erase(launches.begin() + 1);
    }
    if (p.bias) {  // waits for the rows, and the kernels behind for it
      biases_ = loaded_launch(device, launches.at(1));
      launches.erase(launches.begin() + 1);
      d_bias_strides_ = bias_strides(p, {});
      if (adds_bias_gradient(p, c))
        d_bias_bytes_ = sizeof(float) * static_cast<std::size_t>(bias_sizes(p).elements());
    }
    KernelLaunch keys = launches.at(1);
    if (c.persistent) {
      keys.grid = persistent_grid(p, c, select_persistent_clusters(p, c, sms));
    }
    keys_ = loaded_launch(device, keys);
    if (c.sliced()) {
      for (const int i : {2, 3}) {
        more_.push_back(loaded_launch(device, launches.at(static_cast<std::size_t>(i))));
        more_.back().shape.overlaps_previous = true;
      }
    } else if (!c.dq_fused()) {
      dq_ = loaded_launch(device, launches.at(2));
    }
    zeroed_ = launches[1].zeroed;
    // What is zeroed is so ahead of the first kernel: only kernels overlap.
    (tiles_ ? *tiles_ : rows_).shape.overlaps_previous = zeroed_.bytes == 0 && d_bias_bytes_ == 0;
    if (tiles_) rows_.shape.overlaps_previous = true;
    keys_.shape.overlaps_previous = true;
    if (dq_) dq_->shape.overlaps_previous = true;
  }

  void queue(const BackwardArgs& args, const gpu::Stream& stream, int) const override {
    const gpu::Scope scope(device_);  // one for all calls
    if (blocks_) return queue(args_.blocks_with(args), args, stream);
    Sm90BackwardArgs all = args_.with(args);
    if (!biases_ || args.d_bias == nullptr) return queue(all, args, stream);
    if (d_bias_bytes_ > 0 && args.d_bias_strides == d_bias_strides_) {
      gpu::fill(stream, args.d_bias, 0, d_bias_bytes_);
      return queue(all, args, stream);
    }
    const KernelArgs of_biases = args_.bias_gradient(all.args);
    all.args.logits.bias.gradients = nullptr;
    queue(all, args, stream, &of_biases);
  }

 private:
  // of_biases: of a kernel of its own for their gradient.
  template <typename All>
  void queue(const All& all, const BackwardArgs& args, const gpu::Stream& stream,
             const KernelArgs* of_biases = nullptr) const {
    if (zeroed_.bytes > 0) {
      gpu::fill(stream, static_cast<char*>(args.workspace) + zeroed_.offset, 0, zeroed_.bytes);
    }
    if (tiles_) gpu::launch(tiles_->kernel, tiles_->shape, stream, all.args);
    gpu::launch(rows_.kernel, rows_.shape, stream, all.args);
    if (sinks_) gpu::launch(sinks_->kernel, sinks_->shape, stream, all.args);
    if (of_biases != nullptr) gpu::launch(biases_->kernel, biases_->shape, stream, *of_biases);
    gpu::launch(keys_.kernel, keys_.shape, stream, all);
    for (const LoadedLaunch& one : more_) gpu::launch(one.kernel, one.shape, stream, all);
    if (dq_) gpu::launch(dq_->kernel, dq_->shape, stream, all.args);
  }

  const gpu::Device& device_;
  HopperBackwardArgs args_;
  bool blocks_;
  std::optional<LoadedLaunch> tiles_;  // of packed sequences
  LoadedLaunch rows_, keys_;
  std::optional<LoadedLaunch> sinks_;   // their gradient
  std::optional<LoadedLaunch> biases_;  // likewise, by a portable kernel where keys_ adds none
  Strides d_bias_strides_;              // with which keys_ does, and bytes to be zeroed then
  std::size_t d_bias_bytes_ = 0;
  std::optional<LoadedLaunch> dq_;  // where keys_ leaves it
  std::vector<LoadedLaunch> more_;  // of heads in slices: dk and dq behind dv
  ZeroedBytes zeroed_;
};

}  // namespace

BackwardLauncher hopper_backward(const Problem& p, const BackwardConfig& config,
                                 const gpu::Device& device, int sms) {
  if (is_fp32x3(config)) return hopper_fp32x3_backward(p, config, device);
  return std::make_unique<const HopperBackward>(p, config, device, sms);
}

}  // namespace dfa::cuda
