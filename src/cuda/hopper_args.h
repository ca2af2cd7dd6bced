#pragma once

#include <map>
#include <mutex>

#include "gpu/tensor_map.h"
#include "kernels/backward/sm90_args.h"
#include "kernels/backward/sm90_blocks_args.h"
#include "kernels/backward/sm90_fp32x3_args.h"
#include "kernels/forward/sm90_args.h"
#include "kernels/forward/sm90_blocks_args.h"
#include "kernels/forward/sm90_e4m3_args.h"
#include "kernels/forward/sm90_fp32x3_args.h"
#include "kernels/forward/sm90_split_args.h"
#include "kernels/launch.h"

// What Hopper's kernels are passed: all but the pointers is made once, the rest for every call, on
// the device of the caller's gpu::Scope.
namespace dfa::cuda {

class HopperForwardArgs {
 public:
  HopperForwardArgs(const Problem& problem, const ForwardConfig& config);
  // Thread-safe. The first time with so many blocks it looks for work tiles that keep them busy.
  Sm90ForwardArgs with(const ForwardArgs& pointers, int blocks) const;
  // The same of e4m3, with its factors; the workspace is what pack_values has filled.
  Sm90E4m3Args e4m3_with(const ForwardArgs& pointers, int blocks) const;
  // The same of keys in pages.
  Sm90PagedForwardArgs paged_with(const ForwardArgs& pointers, int blocks) const;
  // The same of keys in splits by the lengths, which a kernel before deals out.
  Sm90SplitForwardArgs split_with(const ForwardArgs& pointers, int blocks) const;
  SplitKvForwardArgs split_lists(const ForwardArgs& pointers) const {
    return with_pointers(split_kv_args(problem_, config_), pointers);
  }
  // The same of lists of blocks; the workspace is what block_order fills.
  Sm90BlocksForwardArgs blocks_with(const ForwardArgs& pointers, int blocks) const;
  PackValuesArgs pack_values(const ForwardArgs& pointers) const {
    return pack_values_args(problem_, config_, pointers);
  }

 private:
  TileGrid tile_grid(int blocks) const;

  KernelArgs args_;
  gpu::TiledTensor q_, k_, v_, o_;
  Problem problem_;
  ForwardConfig config_;
  mutable std::mutex mutex_;
  mutable std::map<int, TileGrid> tile_grid_;  // by blocks
};

class HopperFp32x3Args {
 public:
  HopperFp32x3Args(const Problem& problem, const ForwardConfig& config);
  // `split` is what the planes are made with.
  Sm90Fp32x3Args with(const ForwardArgs& pointers, const Fp32x3PlanesArgs& split) const;

 private:
  gpu::TiledTensor q_, k_, v_;
  KernelArgs args_;
};

class HopperBackwardArgs {
 public:
  // On so many multiprocessors.
  HopperBackwardArgs(const Problem& problem, const BackwardConfig& config, int sms);
  Sm90BackwardArgs with(const BackwardArgs& pointers) const;
  // The same of lists of blocks.
  Sm90BlocksBackwardArgs blocks_with(const BackwardArgs& pointers) const;
  // What the portable kernel of a bias's gradient is passed, of what Hopper's are.
  KernelArgs bias_gradient(KernelArgs args) const;

 private:
  KernelArgs args_;
  LogitArgs unfolded_;
  BlockArgs blocks_{};
  gpu::TiledTensor q_, k_, v_, d_o_, dk_, dv_;
};

class HopperFp32x3BackwardArgs {
 public:
  HopperFp32x3BackwardArgs(const Problem& problem, const BackwardConfig& config);
  Sm90Fp32x3DeltaArgs delta(const BackwardArgs& pointers, const BackwardPlanes& split) const;
  Sm90Fp32x3BackwardArgs with(const BackwardArgs& pointers, const BackwardPlanes& split) const;

 private:
  gpu::TiledTensor rows_, q_, k_, v_, d_o_;
  KernelArgs args_;
};

}  // namespace dfa::cuda
