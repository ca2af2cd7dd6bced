#pragma once

#include "kernels/forward/sm80_forward.cuh"
#include "kernels/tile/slice_ring.cuh"

// The forward of sm80_forward.cuh for d or dv above kMostColumns, d up to 576 and dv up to 512.
//
// A thread block owns block_q queries of one head and a slice of the output's columns: no thread
// has registers for more. Blocks of the same queries are neighbours, and each computes all scores.
// Of a tile of keys come the slices of k, one after the other, whose products add up to the scores,
// and then the block's slice of v: one barrier a slice. All of q stays in shared memory.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm80SlicedForward : Sm80Forward<kConfig.of_slice()> {
  using Base = Sm80Forward<kConfig.of_slice()>;
  using Base::kElement, Base::kBytes, Base::kThreads;
  using typename Base::WorkTile;
  static constexpr ForwardConfig kSlice = kConfig.of_slice();
  static constexpr int kScoreSlices = kConfig.head_dim / kSlice.head_dim;
  static constexpr int kOutputSlices = kConfig.output_slices();
  static constexpr int kQSliceBytes = kBytes * kConfig.block_q * kSlice.head_dim;
  static constexpr int kStageBytes = kBytes * kConfig.block_k * kSlice.widest_dim();
  static constexpr int kRingAt = kConfig.smem_bytes() - kConfig.stages * kStageBytes;
  static_assert(kQSliceBytes % 128 == 0 && kStageBytes % 128 == 0 && kRingAt % 128 == 0);
  using Ring = SliceRing<kConfig.stages, kStageBytes>;

  static DFA_DEVICE int output_slice(unsigned block) {
    return static_cast<int>(block % kOutputSlices);
  }

  static DFA_DEVICE void load_queries(const KernelArgs& args, const WorkTile& work,
                                      unsigned q_tile) {
    const char* q = static_cast<const char*>(args.q) +
                    q_head_offset<kElement>(args, args.q_strides, work.seq, work.head);
    load_slices<kElement, kConfig.block_q, kSlice.head_dim, kScoreSlices, kThreads>(
        q_tile, q, args.q_strides.row, work.query, work.seq.sq(args), args.d);
  }

  // The index-th slice of the walk through `tiles`.
  static DFA_DEVICE void load(const KernelArgs& args, WorkTile work, const TileRange& tiles,
                              int output_slice, int index, unsigned to) {
    const int tile = tiles.begin + index / (kScoreSlices + 1);
    const int slice = index % (kScoreSlices + 1);
    if (tile >= tiles.end) return;
    // Addresses are made anew for every slice: across the loop they would take registers.
    work.seq.forget([](int& value) { asm volatile("" : "+r"(value)); });
    asm volatile("" : "+r"(work.kv_head));
    const int first = tile * kConfig.block_k;
    if (slice < kScoreSlices) {
      load_key_slice<kElement, kConfig.block_k, kSlice.head_dim, kThreads, kConfig.paged>(
          to, args, args.k, args.k_strides, work, first, slice, args.d);
    } else {
      load_key_slice<kElement, kConfig.block_k, kSlice.value_dim, kThreads, kConfig.paged>(
          to, args, args.v, args.v_strides, work, first, output_slice, args.d_v);
    }
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas)
    sm80_sliced_forward(const __grid_constant__ KernelArgs args) {
  using Kernel = Sm80SlicedForward<kConfig>;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];

  const unsigned block = blockIdx.x / Kernel::kOutputSlices;
  if constexpr (kConfig.varlen) {
    if (!has_query_work_tile<kConfig.block_q>(args, block)) return;
  }
  const auto work = Kernel::work_tile_of(args, block);
  const int slice = Kernel::output_slice(blockIdx.x);
  const auto mask = MaskOf<kConfig>::of(args, work.seq);
  const TileRange tiles = key_tiles(mask, work.query, kConfig.block_q, kConfig.block_k);
  const unsigned q_tile = ptx::shared_address(smem);
  const auto load = [&](int index, unsigned to) {
    Kernel::load(args, work, tiles, slice, index, to);
  };
  typename Kernel::Ring ring(q_tile + Kernel::kRingAt);
  Kernel::load_queries(args, work, q_tile);
  ring.start(load);

  const unsigned q_rows =
      q_tile + Kernel::kBytes * Kernel::warp_row(threadIdx.x) * Kernel::kSlice.head_dim;
  Sum<Kernel::kRows, Kernel::kValues> output;
  clear(output);
  OnlineSoftmax<Kernel::kRows, kStepwise<kElement>, typename Kernel::Logits> softmax(args);
  const typename Kernel::Logits logits(args, work.seq, work.head);

#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    Sum<Kernel::kRows, Kernel::kKeys> scores;
    multiply_slices<kElement, typename Kernel::QReader, Kernel::kScoreSlices, Kernel::kQSliceBytes>(
        scores, q_rows, ring, load);
    const int first_row = work.query + Kernel::warp_row(ptx::thread_index());
    logits.apply(args, scores, first_row, tile * kConfig.block_k);
    softmax.orient(scores);
    if (mask.needs(work.query, kConfig.block_q, tile * kConfig.block_k, kConfig.block_k)) {
      hide_masked(scores, mask, first_row, tile * kConfig.block_k, -ptx::infinity());
    }
    softmax.step(scores, output);

    typename Rounded<kElement, Kernel::kRows, Kernel::kKeys>::Type weights;
    round_to_left<kElement>(weights, scores);
    multiply<kElement, 1>(output, weights, Kernel::VReader::by_rows(ring.next(load)));
  }

  float inverse[Kernel::kRows][2], lse[Kernel::kRows][2];
  const auto owned = Kernel::work_tile_of(args, ptx::block_index() / Kernel::kOutputSlices);
  if constexpr (kConfig.sink) {
    softmax.finish(inverse, lse, args.logits.sinks[owned.head]);
  } else {
    softmax.finish(inverse, lse);
  }
  const int of_output = Kernel::output_slice(ptx::block_index());
  const int first_row = Kernel::warp_row(ptx::thread_index());
  if (of_output == 0) Kernel::store_lse(args, owned, owned.query + first_row, lse);
  ptx::wait_copies<0>();
  __syncthreads();  // the output takes the place of q
  stage_sums<kElement, 1>(smem, first_row, 0, output, inverse);
  __syncthreads();
  constexpr int kColumns = Kernel::kSlice.value_dim;
  store_tile<kElement, kConfig.block_q, kColumns, Kernel::kThreads>(
      smem,
      static_cast<char*>(args.o) + Kernel::kBytes * kColumns * of_output +
          q_head_offset<kElement>(args, args.o_strides, owned.seq, owned.head),
      args.o_strides.row, owned.query, owned.seq.sq(args), args.d_v - of_output * kColumns);
}

}  // namespace dfa
