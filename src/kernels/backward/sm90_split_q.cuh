#pragma once

#include "kernels/args.h"
#include "kernels/ptx/order.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/tile/panel_rows.cuh"

namespace dfa {

// dk and dv of a work tile whose queries several pairs walk a part each of (SplitQ). Each warp
// leaves its sums of its 16 keys, in fp32 as they lie in registers, and counts; the one that counts
// last adds up those of all parts, in their order, so that bits are equal in every run. Nobody
// waits. Keys: Sm90Keys.
template <BackwardConfig kConfig, typename Keys>
struct Sm90SplitQ {
  static constexpr int kFragments = Keys::kDims + Keys::kValues;
  static constexpr unsigned kWarps = kConfig.cluster * kConfig.warps;
  static constexpr unsigned kApart = kWarps * kFragments * 32;  // two parts, in float4

  int parts;
  float4* first;  // of the first part, this lane's
  unsigned* ended;

  DFA_DEVICE Sm90SplitQ(const KernelArgs& args, const typename Keys::WorkTile& of_pair, int group)
      : parts(args.parts.parts) {
    const auto work = static_cast<unsigned>(work_tile_index<kConfig.cluster_keys()>(args, of_pair) -
                                            args.parts.first);
    const auto warp = static_cast<unsigned>((Keys::rank() * 2 + group) * 4 + Keys::warp_row() / 16);
    first = reinterpret_cast<float4*>(args.part_sums) +
            (work * static_cast<unsigned>(parts) * kWarps + warp) * kFragments * 32 + Keys::lane();
    ended = args.dq_semaphores + args.dq_semaphore_count - 1 - kPartCounters + work * kWarps + warp;
  }

  // A part's sums. Have all parts left theirs by now?
  template <typename Sums>
  DFA_DEVICE bool leave(int part, const Sums& sums) const {
    float4* at = first + static_cast<unsigned>(part - 1) * kApart;
    leave(at, sums.dv);
    leave(at + Keys::kValues * 32, sums.dk);
    __syncwarp();
    unsigned before = 0;
    if (Keys::lane() == 0) before = ptx::add_1_acquire_release(ended);
    return static_cast<int>(__shfl_sync(ptx::kWholeWarp, before, 0)) + 1 == parts;
  }

  // dk or dv, from fragment kFirst of what was left on, of all parts; see store_gradient. A few
  // columns at a time: where this takes many registers steps have others, and are slower. Sums of
  // several parts are asked for before any is added: one after the other each waits for its own.
  template <int kStride, int kFirst, int kCount>
  DFA_DEVICE void join(const KernelArgs& args, const TensorMap& map, unsigned tile, int group,
                       const typename Keys::WorkTile& work, float factor) const {
    constexpr int kAtOnce = kCount % 4 == 0 ? 2 : 1;  // 16 columns
    constexpr int kAhead = 4;                         // parts
    const int row = group * kGroupRows + Keys::warp_row();
#pragma unroll 1
    for (int k = 0; k < kCount / 2; k += kAtOnce) {
      float sums[kAtOnce][2][4] = {};
      const float4* at = first + (kFirst + 2 * k) * 32;
#pragma unroll 1
      for (int part = 0; part < parts; part += kAhead, at += kAhead * kApart) {
        float4 next[kAhead][2 * kAtOnce] = {};
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          if (part + n < parts) {
#pragma unroll
            for (int i = 0; i < 2 * kAtOnce; ++i) next[n][i] = at[n * kApart + i * 32];
          }
        }
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
#pragma unroll
          for (int i = 0; i < 2 * kAtOnce; ++i) add(next[n][i], sums[i / 2][i % 2]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        unsigned rounded[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = sums[i][j / 2] + j % 2 * 2;
          rounded[j] = ptx::pack<kConfig.element>(pair[0] * factor, pair[1] * factor);
        }
        store_columns<kStride>(tile, row, k + i, rounded, Keys::lane());
      }
    }
    Keys::template send_gradient<kStride, kCount>(args, map, tile, row, work);
  }

 private:
  template <int kCount>
  static DFA_DEVICE void leave(float4* at, const float (&sum)[kCount][4]) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      at[n * 32] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
    }
  }
  static DFA_DEVICE void add(const float4& x, float (&sum)[4]) {
    sum[0] += x.x;
    sum[1] += x.y;
    sum[2] += x.z;
    sum[3] += x.w;
  }
};

}  // namespace dfa
