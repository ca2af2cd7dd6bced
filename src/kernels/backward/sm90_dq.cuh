#pragma once

#include "kernels/backward/dq_turns.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/store.cuh"

// dq of sm90_backward: every block of keys adds its share of each tile to fp32 sums, in turn
// (dq_turns.cuh) or, with dq = unordered, as they come. A share is transposed, 64 columns of dq as
// rows for a warpgroup; where dq has no more, both take them, for half of the queries each. So a
// tile has places for two shares, or for one of each 64 columns.
//
// Shares lie in memory as they lie in registers: [tile][part of the queries][16 columns of dq]
// [fragment of 8 queries][lane][4].
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Dq : DqTurns<kConfig> {
  using Turns = DqTurns<kConfig>;
  using typename Turns::Head;
  static constexpr bool kOrdered = kConfig.dq == DqSum::ordered;
  static constexpr int kGroups = kConfig.warps / 4;
  static constexpr int kPanels = panels(kConfig.head_dim);
  static constexpr int kParts = kPanels < kGroups ? kGroups / kPanels : 1;
  static constexpr int kPlaces = kParts * kPanels;
  static constexpr int kQueries = kConfig.block_q / kParts;  // of a share
  static constexpr int kFragments = kQueries / 8;
  static constexpr int kSlots = kConfig.head_dim / 16;
  static constexpr int kTileFloats = kConfig.block_q * kConfig.head_dim;
  static_assert(kPlaces >= kGroups && (kParts == 1 || kQueries % kPanelColumns == 0));
  using Share = float[kFragments][4];

  // Of a place: which 64 columns of dq and which queries.
  static DFA_DEVICE int panel(int place) { return place / kParts; }
  static DFA_DEVICE int part(int place) { return place % kParts; }

  // Which 16 columns of dq a warp has; from kSlots on there are none.
  static DFA_DEVICE int slot(int place) {
    return 4 * panel(place) + static_cast<int>(ptx::thread_index() / 32 % 4);
  }

  // From the sums of place 0 to those of another.
  static constexpr int place_floats(int place) {
    return (place % kParts * kSlots + place / kParts * 4) * kFragments * 128;
  }

  static DFA_DEVICE float* lane_sums(const KernelArgs& args, unsigned tile, int place) {
    const int at = (part(place) * kSlots + slot(place)) * kFragments * 128 +
                   static_cast<int>(ptx::thread_index() % 32) * 4;
    return args.dq_sums + static_cast<long long>(tile) * kTileFloats + at;
  }

  static DFA_DEVICE bool is_first(const KernelArgs& args, int tile, int key) {
    return kOrdered &&
           Turns::blocks_before(args, tile * kConfig.block_q, kConfig.block_q, key) == 0;
  }

  static DFA_DEVICE void add_to(float* to, bool first, const Share& share) {
    if (first) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        *reinterpret_cast<uint4*>(to + n * 128) = ptx::to_bits(share[n]);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) ptx::add_4(to + n * 128, share[n]);
    }
  }

  static DFA_DEVICE void add(const KernelArgs& args, Head head, int tile, int key, int place,
                             const Share& share) {
    if (slot(place) >= kSlots) return;
    add_to(lane_sums(args, Turns::index(args, head, tile), place), is_first(args, tile, key),
           share);
  }
};

// The sums as dq's elements, a warpgroup for each place.
template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.sm90_dq_threads())
    sm90_dq(const __grid_constant__ KernelArgs args) {
  using Dq = Sm90Dq<kConfig>;
  constexpr DType kElement = kConfig.element;
  using Layout = TileLayout<kElement, kConfig.head_dim>;
  extern __shared__ __align__(1024) char smem[];
  const int head = static_cast<int>(blockIdx.x) / Dq::tiles(args);
  const int query = static_cast<int>(blockIdx.x) % Dq::tiles(args) * kConfig.block_q;
  const TileRange keys = key_tiles(TileMask::of(args), query, kConfig.block_q, kConfig.block_k);
  const bool seen = keys.begin < keys.end;

  const int place = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int slot = Dq::slot(place);
  if (slot < Dq::kSlots) {
    const float* from = Dq::lane_sums(args, blockIdx.x, place);
    const unsigned lane = threadIdx.x % 32;
    const unsigned first = Dq::part(place) * Dq::kQueries + lane / 16 * 8 + lane % 8;
    const unsigned chunk = slot * 2 + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < Dq::kFragments; n += 2) {
      unsigned rounded[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 sum =
            seen ? *reinterpret_cast<const float4*>(from + (n + i) * 128) : make_float4(0, 0, 0, 0);
        rounded[2 * i] = ptx::pack<kElement>(sum.x * args.scale, sum.y * args.scale);
        rounded[2 * i + 1] = ptx::pack<kElement>(sum.z * args.scale, sum.w * args.scale);
      }
      ptx::store_matrices_trans(ptx::shared_address(smem) + Layout::offset(first + n * 8, chunk),
                                rounded);
    }
  }
  __syncthreads();
  store_tile<kElement, kConfig.block_q, kConfig.head_dim, kConfig.sm90_dq_threads()>(
      smem,
      static_cast<char*>(args.dq) +
          head_offset<kElement>(args.q_strides, head / args.hq, head % args.hq),
      args.q_strides.row, query, args.sq, args.d);
}

}  // namespace dfa
