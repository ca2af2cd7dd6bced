#pragma once

#include "kernels/args.h"
#include "kernels/ptx/order.cuh"
#include "kernels/softmax/tile_mask.h"
#include "kernels/tile/product.cuh"
#include "kernels/tile/store.cuh"
#include "spec/config.h"

// dq as a sum that the keys' thread blocks add to, one after another: five products instead of
// seven. Some tiles of queries together, dq_block_q rows, have a counter; the block with key tile n
// adds its shares when the n blocks before it have, so the order of the sum is fixed and its bits
// are always the same. Blocks start in the order of their indices and wait for lower ones only:
// none waits for ever.
//
// Shares lie in memory as they lie in registers: [tile][warp][fragment][lane][4].
namespace dfa {

template <BackwardConfig kConfig>
struct OrderedDq {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kWarpRows = kConfig.ordered_rows();
  static constexpr int kParts = kConfig.ordered_parts();  // warps beside each other in a row
  static constexpr int kRows = kWarpRows / 16;
  static constexpr int kColumns = kConfig.head_dim / 8 / kParts;
  static constexpr int kTileFloats = kConfig.block_q * kConfig.head_dim;
  static constexpr int kTurnRows = kConfig.dq_block_q;
  static constexpr int kTurnTiles = kTurnRows / kConfig.block_q;
  using Share = Sum<kRows, kColumns>;

  static DFA_DEVICE int part() { return static_cast<int>(ptx::thread_index() / 32) % kParts; }
  static DFA_DEVICE int first_row() {
    return static_cast<int>(ptx::thread_index() / 32) / kParts * kWarpRows;
  }

  static DFA_DEVICE int tiles(const KernelArgs& args) {
    return (args.sq + kConfig.block_q - 1) / kConfig.block_q;
  }

  struct Head {
    int batch, head;
  };

  // Which of the tiles of all heads this one is.
  static DFA_DEVICE unsigned index(const KernelArgs& args, Head head, int tile) {
    return static_cast<unsigned>((head.batch * args.hq + head.head) * tiles(args) + tile);
  }

  // How many blocks add to rows of a tile before that of the keys from `key` on.
  static DFA_DEVICE unsigned blocks_before(const KernelArgs& args, int row, int rows, int key) {
    const TileRange seen = key_tiles(TileMask::of(args), row, rows, kConfig.block_k);
    return static_cast<unsigned>(key / kConfig.block_k - seen.begin);
  }

  // A turn: the tiles of kTurnRows rows. Its counter, and its number for a block.
  static DFA_DEVICE unsigned* counter(const KernelArgs& args, Head head, int tile) {
    const int turns = (args.sq + kTurnRows - 1) / kTurnRows;
    return args.turns + (head.batch * args.hq + head.head) * turns + tile / kTurnTiles;
  }
  static DFA_DEVICE unsigned turn(const KernelArgs& args, int tile, int key) {
    return blocks_before(args, tile / kTurnTiles * kTurnRows, kTurnRows, key);
  }

  // Is the tile the first that a block comes by in its turn, walking down from `end`, or the last
  // down to `begin`?
  static DFA_DEVICE bool starts_turn(int tile, int end) {
    return tile + 1 == end || (tile + 1) % kTurnTiles == 0;
  }
  static DFA_DEVICE bool ends_turn(int tile, int begin) {
    return tile == begin || tile % kTurnTiles == 0;
  }

  static DFA_DEVICE void wait(const KernelArgs& args, Head head, int tile, int key) {
    const unsigned* counted = counter(args, head, tile);
    const unsigned own = turn(args, tile, key);
    while (ptx::load_acquire(counted) != own) __nanosleep(32);
  }

  static DFA_DEVICE void pass_on(const KernelArgs& args, Head head, int tile, int key) {
    ptx::store_release(counter(args, head, tile), turn(args, tile, key) + 1);
  }

  template <typename Visit>
  static DFA_DEVICE void each_fragment(const Share& share, const Visit& visit) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) visit((m * kColumns + n) * 128, share[m][n]);
    }
  }

  static DFA_DEVICE float* lane_sums(const KernelArgs& args, unsigned tile) {
    const unsigned thread = ptx::thread_index();
    return args.dq_sums + static_cast<long long>(tile) * kTileFloats +
           thread / 32 * (kRows * kColumns * 128) + thread % 32 * 4;
  }

  static DFA_DEVICE void add(const KernelArgs& args, Head head, int tile, int key,
                             const Share& share) {
    float* to = lane_sums(args, index(args, head, tile));
    if (blocks_before(args, tile * kConfig.block_q, kConfig.block_q, key) == 0) {
      each_fragment(share, [&](int at, const float(&four)[4]) {
        *reinterpret_cast<uint4*>(to + at) = ptx::to_bits(four);
      });
    } else {
      each_fragment(share, [&](int at, const float(&four)[4]) { ptx::add_4(to + at, four); });
    }
  }

  static DFA_DEVICE void read(const KernelArgs& args, unsigned tile, Share& sum) {
    const float* from = lane_sums(args, tile);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        ptx::from_bits(sum[m][n], *reinterpret_cast<const uint4*>(from + (m * kColumns + n) * 128));
      }
    }
  }
};

// The sums as dq's elements.
template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    sm80_ordered_dq(const __grid_constant__ KernelArgs args) {
  using Dq = OrderedDq<kConfig>;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];
  const int head = static_cast<int>(blockIdx.x) / Dq::tiles(args);
  const int query = static_cast<int>(blockIdx.x) % Dq::tiles(args) * kConfig.block_q;
  const TileRange keys = key_tiles(TileMask::of(args), query, kConfig.block_q, kConfig.block_k);

  typename Dq::Share sum;
  clear(sum);
  if (keys.begin < keys.end) Dq::read(args, blockIdx.x, sum);
  float factor[Dq::kRows][2];
#pragma unroll
  for (int m = 0; m < Dq::kRows; ++m) factor[m][0] = factor[m][1] = args.scale;
  stage_sums<kElement, Dq::kParts>(smem, Dq::first_row(), Dq::part(), sum, factor);
  __syncthreads();
  store_tile<kElement, kConfig.block_q, kConfig.head_dim, kConfig.threads()>(
      smem,
      static_cast<char*>(args.dq) +
          head_offset<kElement>(args.q_strides, head / args.hq, head % args.hq),
      args.q_strides.row, query, args.sq, args.d);
}

}  // namespace dfa
