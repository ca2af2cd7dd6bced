#pragma once

#include "kernels/backward/dq_semaphore.cuh"
#include "kernels/backward/sm90_fragments.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/product.cuh"

// dq of sm90_backward: every block of keys adds its share of each tile to fp32 sums, serialized
// (dq_semaphore.cuh) or, atomic, as they come. A share is transposed, 64 columns of dq as
// rows for a warpgroup; where dq has no more, both take them, for half of the queries each. So a
// tile has places for two shares, or for one of each 64 columns. Of 96 columns pairs of blocks have
// 64 queries as rows instead, of 48 columns each (kSm90KeyColumns). When all have, the sums are
// rounded: by a kernel of its own or, fused, in the same grid (sm90_dq_rounding.cuh).
//
// Shares lie in memory as they lie in registers: [tile][part of the queries][16 columns of dq]
// [fragment of 8 queries][lane][4]; by rows: [tile][48 columns][16 queries][fragment of 8
// columns][lane][4].
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Dq : DqSemaphore<kConfig> {
  using Semaphore = DqSemaphore<kConfig>;
  using typename Semaphore::Head;
  static constexpr bool kSerialized = kConfig.dq_serialized();
  static constexpr int kGroups = kConfig.warps / 4;
  static constexpr int kKeyColumns = kSm90KeyColumns<kConfig>;
  static constexpr bool kByRows = kKeyColumns < kPanelColumns;  // queries as rows
  static constexpr int kPanels = panels(kConfig.head_dim);
  // Where warpgroups have the same keys, a tile of one panel has one share.
  static constexpr int kParts =
      kPanels < kGroups && !kConfig.sm90_is_wide() ? kGroups / kPanels : 1;
  static constexpr int kPlaces = kParts * kPanels;
  static constexpr int kQueries = kConfig.block_q / kParts;  // of a share
  static constexpr int kFragments = (kByRows ? kKeyColumns : kQueries) / 8;
  static constexpr int kSlots = kConfig.head_dim / 16;
  static constexpr int kTileFloats = kConfig.block_q * kConfig.head_dim;
  static_assert((kPlaces >= kGroups || kConfig.sm90_is_wide()) &&
                (kParts == 1 || kQueries % kPanelColumns == 0));
  using Share = float[kFragments][4];
  using Layout = TileLayout<kConfig.element, kConfig.head_dim>;  // of rounded rows

  // Of a place: which 64 columns of dq and which queries.
  static DFA_DEVICE int panel(int place) { return place / kParts; }
  static DFA_DEVICE int part(int place) { return place % kParts; }

  // Which 16 columns of dq a warp has; from kSlots on there are none. By rows: which 16 queries.
  static DFA_DEVICE int slot(int place) {
    return 4 * panel(place) + static_cast<int>(ptx::thread_index() / 32 % 4);
  }

  // From the sums of place 0 to those of another.
  static constexpr int place_floats(int place) {
    return (place % kParts * kSlots + place / kParts * 4) * kFragments * 128;
  }

  // Has the warp any?
  static DFA_DEVICE bool has_share(int place) { return kByRows || slot(place) < kSlots; }

  static DFA_DEVICE int lane_offset(int place) {
    const int lane = static_cast<int>(ptx::thread_index() % 32);
    if constexpr (kByRows) {
      const int warp = static_cast<int>(ptx::thread_index() / 32 % 4);
      return (place * 4 + warp) * kFragments * 128 + lane * 4;
    }
    return (part(place) * kSlots + slot(place)) * kFragments * 128 + lane * 4;
  }
  static DFA_DEVICE float* lane_sums(const KernelArgs& args, unsigned tile, int place) {
    return args.dq_sums + static_cast<long long>(tile) * kTileFloats + lane_offset(place);
  }

  static DFA_DEVICE bool is_first(const KernelArgs& args, const Head& head, int tile, int key) {
    return kSerialized &&
           Semaphore::blocks_before(args, head, tile * kConfig.block_q, kConfig.block_q, key) == 0;
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
    if (!has_share(place)) return;
    add_to(lane_sums(args, Semaphore::index(args, head, tile), place),
           is_first(args, head, tile, key), share);
  }

  // Then dq's elements, a warpgroup for each place. A tile is one of those of all heads.

  using Sums = float4[kFragments];

  // One in its head, and among the sums of all.
  struct Tile {
    Head head;
    int tile;
    unsigned index;
  };
  static DFA_DEVICE Tile tile_at(const KernelArgs& args, int index) {
    const int head = index / Semaphore::tiles(args);
    return {{{head / args.hq}, head % args.hq},
            index % Semaphore::tiles(args),
            static_cast<unsigned>(index)};
  }
  // Of a thread block of the kernel of its own.
  static DFA_DEVICE Tile own_tile(const KernelArgs& args) {
    if constexpr (kConfig.varlen) {
      const auto work = query_work_tile<kConfig.block_q, true>(args, blockIdx.x);
      const Head head{work.seq, work.head};
      const int tile = work.query / kConfig.block_q;
      return {head, tile, Semaphore::index(args, head, tile)};
    } else {
      return tile_at(args, static_cast<int>(blockIdx.x));
    }
  }

  // Does any key add to it?
  static DFA_DEVICE bool is_seen(const KernelArgs& args, const Tile& tile) {
    const TileRange keys =
        key_tiles(MaskOf<kConfig>::of(args, tile.head.seq), tile.tile * kConfig.block_q,
                  kConfig.block_q, kConfig.cluster_keys());
    return keys.begin < keys.end;
  }

  static DFA_DEVICE void load_sums(const KernelArgs& args, const Tile& tile, int place,
                                   Sums& sums) {
    const bool there = is_seen(args, tile) && has_share(place);
    const float* from = lane_sums(args, tile.index, place);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      sums[n] = there ? *reinterpret_cast<const float4*>(from + n * 128) : make_float4(0, 0, 0, 0);
    }
  }

  // From a copy of a tile's sums in shared memory.
  static DFA_DEVICE void load_staged(const KernelArgs& args, const Tile& tile, int place,
                                     unsigned copy, Sums& sums) {
    const bool there = is_seen(args, tile) && has_share(place);
    const unsigned from = copy + 4 * lane_offset(place);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      sums[n] = there ? ptx::load_shared_4(from + n * 512) : make_float4(0, 0, 0, 0);
    }
  }

  // Of two fragments, each the first eight of their rows, then the others.
  static DFA_DEVICE void round(unsigned (&rounded)[4], const KernelArgs& args, const float4& first,
                               const float4& second) {
    rounded[0] = ptx::pack<kConfig.element>(first.x * args.scale, first.y * args.scale);
    rounded[1] = ptx::pack<kConfig.element>(first.z * args.scale, first.w * args.scale);
    rounded[2] = ptx::pack<kConfig.element>(second.x * args.scale, second.y * args.scale);
    rounded[3] = ptx::pack<kConfig.element>(second.z * args.scale, second.w * args.scale);
  }

  static DFA_DEVICE void stage(const KernelArgs& args, int place, const Sums& sums,
                               unsigned staged) {
    if (!has_share(place)) return;
    const unsigned lane = ptx::thread_index() % 32;
    if constexpr (kByRows) {
      const unsigned row = slot(place) % 4 * 16 + lane % 16;
      const unsigned chunk = place * (kKeyColumns / 8) + lane / 16;
#pragma unroll
      for (int n = 0; n < kFragments; n += 2) {
        unsigned rounded[4];
        round(rounded, args, sums[n], sums[n + 1]);
        ptx::store_matrices(staged + Layout::offset(row, chunk + n), rounded);
      }
      return;
    }
    const unsigned first = part(place) * kQueries + lane / 16 * 8 + lane % 8;
    const unsigned chunk = slot(place) * 2 + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < kFragments; n += 2) {
      unsigned rounded[4];
      round(rounded, args, sums[n], sums[n + 1]);
      ptx::store_matrices_trans(staged + Layout::offset(first + n * 8, chunk), rounded);
    }
  }

  // The n-th 128 bytes of a tile's sums, which have been read.
  static DFA_DEVICE void discard(const KernelArgs& args, int tile, int n) {
    const float* line = args.dq_sums + static_cast<long long>(tile) * kTileFloats + n * 32;
    if (reinterpret_cast<unsigned long long>(line) % 128 == 0) ptx::discard_line(line);
  }

  // Rows that exist, 16 bytes a thread.
  template <int kThreads>
  static DFA_DEVICE void store(const KernelArgs& args, const Tile& tile, unsigned staged) {
    constexpr int kChunks = Layout::kChunks, kCopies = kConfig.block_q * kChunks / kThreads;
    static_assert(kCopies * kThreads == kConfig.block_q * kChunks);
    const int query = tile.tile * kConfig.block_q;
    char* const dq =
        static_cast<char*>(args.dq) +
        q_head_offset<kConfig.element>(args, args.q_strides, tile.head.seq, tile.head.head);
    const int thread = static_cast<int>(ptx::thread_index());
    uint4 words[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const unsigned copy = static_cast<unsigned>(thread + i * kThreads);
      words[i] = ptx::load_words_4(staged + Layout::offset(copy / kChunks, copy % kChunks));
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = query + (thread + i * kThreads) / kChunks;
      const int chunk = (thread + i * kThreads) % kChunks;
      if (row >= tile.head.seq.sq(args) || chunk * 8 >= args.d) continue;
      *reinterpret_cast<uint4*>(dq + 2 * row * args.q_strides.row + chunk * 16) = words[i];
    }
  }
};

// dq of a tile.
template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.sm90_dq_threads())
    sm90_dq(const __grid_constant__ KernelArgs args) {
  using Dq = Sm90Dq<kConfig>;
  extern __shared__ __align__(1024) char smem[];
  ptx::griddepcontrol_wait();
  if constexpr (kConfig.varlen) {
    if (!has_query_work_tile<kConfig.block_q>(args, blockIdx.x)) return;
  }
  const auto tile = Dq::own_tile(args);
  const int place = static_cast<int>(threadIdx.x) / kGroupThreads;
  typename Dq::Sums sums;
  Dq::load_sums(args, tile, place, sums);
  Dq::stage(args, place, sums, ptx::shared_address(smem));
  __syncthreads();
  Dq::template store<kConfig.sm90_dq_threads()>(args, tile, ptx::shared_address(smem));
}

}  // namespace dfa
