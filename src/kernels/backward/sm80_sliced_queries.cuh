#pragma once

#include "kernels/backward/sm80_queries.cuh"
#include "kernels/tile/slice_ring.cuh"

// dq as in sm80_queries.cuh, for d or dv above kMostColumns. A thread block owns dq_block_q queries
// of one head and a slice of the columns of dq. Of a tile of keys come the slices of k, which make
// up the scores, those of v, which make up dP, and then the block's slice of k once more. The owned
// q and do stay in shared memory. Blocks of the same queries are neighbours.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm80SlicedQueries : Sm80Queries<kConfig.of_slice()> {
  using Base = Sm80Queries<kConfig.of_slice()>;
  using Base::kElement, Base::kBytes, Base::kThreads;
  using typename Base::WorkTile;
  static constexpr BackwardConfig kSlice = kConfig.of_slice();
  static constexpr int kColumns = kSlice.head_dim;  // of the sum
  static constexpr int kKSlices = kConfig.head_dim / kSlice.head_dim;
  static constexpr int kVSlices = kConfig.value_dim / kSlice.value_dim;
  static constexpr int kStepSlices = kKSlices + kVSlices + 1;  // of a step
  static constexpr int kQSliceBytes = kBytes * kConfig.dq_block_q * kSlice.head_dim;
  static constexpr int kDoSliceBytes = kBytes * kConfig.dq_block_q * kSlice.value_dim;
  static constexpr int kDoAt = kKSlices * kQSliceBytes;
  static constexpr int kStageBytes = kConfig.dq_block_k * kConfig.slice_bytes();
  static constexpr int kRingAt = kDoAt + kVSlices * kDoSliceBytes;
  static_assert(kRingAt + kConfig.stages * kStageBytes == kConfig.dq_smem_bytes());
  static_assert(kQSliceBytes % 128 == 0 && kDoSliceBytes % 128 == 0 && kStageBytes % 128 == 0);
  using Ring = SliceRing<kConfig.stages, kStageBytes>;

  static DFA_DEVICE void load_queries(const KernelArgs& args, const WorkTile& work, unsigned smem) {
    const char* q = static_cast<const char*>(args.q) +
                    q_head_offset<kElement>(args, args.q_strides, work.seq, work.head);
    const char* d_o = static_cast<const char*>(args.d_o) +
                      q_head_offset<kElement>(args, args.o_strides, work.seq, work.head);
    load_slices<kElement, kConfig.dq_block_q, kSlice.head_dim, kKSlices, kThreads>(
        smem, q, args.q_strides.row, work.query, work.seq.sq(args), args.d);
    load_slices<kElement, kConfig.dq_block_q, kSlice.value_dim, kVSlices, kThreads>(
        smem + kDoAt, d_o, args.o_strides.row, work.query, work.seq.sq(args), args.d_v);
  }

  // The index-th slice of the walk, where `own` is the block's of the sum.
  static DFA_DEVICE void load(const KernelArgs& args, WorkTile work, const TileRange& tiles,
                              int own, int index, unsigned to) {
    const int tile = tiles.begin + index / kStepSlices, slice = index % kStepSlices;
    if (tile >= tiles.end) return;
    // Addresses are made anew for every slice: across the loop they would take registers.
    work.seq.forget([](int& value) { asm volatile("" : "+r"(value)); });
    asm volatile("" : "+r"(work.kv_head));
    const int first = tile * kConfig.dq_block_k;
    if (slice < kKSlices || slice == kStepSlices - 1) {
      load_key_slice<kElement, kConfig.dq_block_k, kSlice.head_dim, kThreads, false>(
          to, args, args.k, args.k_strides, work, first, slice < kKSlices ? slice : own, args.d);
    } else {
      load_key_slice<kElement, kConfig.dq_block_k, kSlice.value_dim, kThreads, false>(
          to, args, args.v, args.v_strides, work, first, slice - kKSlices, args.d_v);
    }
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.dq_threads(), kConfig.dq_ctas)
    sm80_sliced_queries(const __grid_constant__ KernelArgs args) {
  using Kernel = Sm80SlicedQueries<kConfig>;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];

  const unsigned block = blockIdx.x / Kernel::kKSlices;
  if constexpr (kConfig.varlen) {
    if (!has_query_work_tile<kConfig.dq_block_q>(args, block)) return;
  }
  const auto work = Kernel::work_tile_of(args, block);
  const int own = static_cast<int>(blockIdx.x % Kernel::kKSlices);
  const auto mask = MaskOf<kConfig>::of(args, work.seq);
  const TileRange tiles = key_tiles(mask, work.query, kConfig.dq_block_q, kConfig.dq_block_k);
  const unsigned queries = ptx::shared_address(smem);
  const auto load = [&](int index, unsigned to) {
    Kernel::load(args, work, tiles, own, index, to);
  };
  typename Kernel::Ring ring(queries + Kernel::kRingAt);
  Kernel::load_queries(args, work, queries);
  ring.start(load);

  const int warp_row = Kernel::warp_row(threadIdx.x);
  const unsigned q_rows = queries + Kernel::kBytes * warp_row * Kernel::kSlice.head_dim;
  const unsigned do_rows =
      queries + Kernel::kDoAt + Kernel::kBytes * warp_row * Kernel::kSlice.value_dim;
  const long long values_at = work.seq.padded_offset(args, work.head) + work.query + warp_row;
  float lse[Kernel::kRows][2], delta[Kernel::kRows][2];
  Kernel::read_row_values(args.lse_log2 + values_at, lse);
  Kernel::read_row_values(args.delta + values_at, delta);
  const typename Kernel::Logits logits(args, work.seq, work.head);
  Sum<Kernel::kRows, Kernel::kDims> dq;
  clear(dq);

#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    Sum<Kernel::kRows, Kernel::kKeys> p, dp;
    multiply_slices<kElement, typename Kernel::DimReader, Kernel::kKSlices, Kernel::kQSliceBytes>(
        p, q_rows, ring, load);
    typename Kernel::Logits::template Shares<Kernel::kRows, Kernel::kKeys> shares;
    const int first_row = work.query + Kernel::warp_row(ptx::thread_index());
    logits.apply(args, p, first_row, tile * kConfig.dq_block_k, shares);
    if (mask.needs(work.query, kConfig.dq_block_q, tile * kConfig.dq_block_k, kConfig.dq_block_k)) {
      hide_masked(p, mask, first_row, tile * kConfig.dq_block_k, Kernel::Logits::hidden(args));
    }
    Kernel::probabilities(args, p, lse);
    multiply_slices<kElement, typename Kernel::ValueReader, Kernel::kVSlices,
                    Kernel::kDoSliceBytes>(dp, do_rows, ring, load);
    Kernel::score_gradients(typename Kernel::Dropout(args, 0), dp, p, delta);
    Kernel::Logits::chain(dp, shares);

    typename Rounded<kElement, Kernel::kRows, Kernel::kKeys>::Type ds;
    round_to_left<kElement>(ds, dp);
    multiply<kElement, 1>(dq, ds, Kernel::DimReader::by_rows(ring.next(load)));
  }

  ptx::wait_copies<0>();
  __syncthreads();  // dq takes the place of q
  const auto owned = Kernel::work_tile_of(args, ptx::block_index() / Kernel::kKSlices);
  const int slice = static_cast<int>(ptx::block_index() % Kernel::kKSlices);
  float factor[Kernel::kRows][2];
#pragma unroll
  for (int m = 0; m < Kernel::kRows; ++m) factor[m][0] = factor[m][1] = args.scale;
  stage_sums<kElement, 1>(smem, Kernel::warp_row(ptx::thread_index()), 0, dq, factor);
  __syncthreads();
  store_tile<kElement, kConfig.dq_block_q, Kernel::kColumns, Kernel::kThreads>(
      smem,
      static_cast<char*>(args.dq) + Kernel::kBytes * Kernel::kColumns * slice +
          q_head_offset<kElement>(args, args.q_strides, owned.seq, owned.head),
      args.q_strides.row, owned.query, owned.seq.sq(args), args.d - slice * Kernel::kColumns);
}

}  // namespace dfa
