#pragma once

#include "kernels/backward/sm80_keys.cuh"
#include "kernels/tile/slice_ring.cuh"

// dk and dv as in sm80_keys.cuh, for d or dv above kMostColumns. Two kernels, of which a thread
// block owns block_k keys of one key head and a slice of the columns of its gradient:
//   dv  walks, of a tile of queries, the slices of q and then its slice of do
//   dk  walks those of q, those of do, and then its slice of q once more
// Slices of q make up p^T, slices of do dP^T, and the last one is what the sum is of. The owned
// keys, for dk their values too, stay in shared memory. Blocks of the same keys are neighbours.
namespace dfa {

template <BackwardConfig kConfig, bool kOfValues>
struct Sm80SlicedKeys : Sm80Keys<kConfig.of_slice()> {
  using Base = Sm80Keys<kConfig.of_slice()>;
  using Base::kElement, Base::kBytes, Base::kThreads;
  using typename Base::Place;
  using typename Base::WorkTile;
  static constexpr BackwardConfig kSlice = kConfig.of_slice();
  static constexpr int kColumns = kOfValues ? kSlice.value_dim : kSlice.head_dim;  // of the sum
  static constexpr int kQSlices = kConfig.head_dim / kSlice.head_dim;
  static constexpr int kDoSlices = kConfig.value_dim / kSlice.value_dim;
  static constexpr int kSumSlices = kOfValues ? kDoSlices : kQSlices;
  static constexpr int kStepSlices = kQSlices + (kOfValues ? 0 : kDoSlices) + 1;  // of a step
  static constexpr int kKSliceBytes = kBytes * kConfig.block_k * kSlice.head_dim;
  static constexpr int kVSliceBytes = kBytes * kConfig.block_k * kSlice.value_dim;
  static constexpr int kVAt = kQSlices * kKSliceBytes;
  static constexpr int kStageBytes = kConfig.block_q * kConfig.slice_bytes();
  static constexpr int kRingAt =
      (kOfValues ? kConfig.sliced_dv_smem_bytes() : kConfig.smem_bytes()) -
      kConfig.stages * kStageBytes;
  static_assert(kConfig.sharing == 1 && kConfig.dq == DqAccumulation::separate);
  static_assert(kKSliceBytes % 128 == 0 && kVSliceBytes % 128 == 0 && kStageBytes % 128 == 0);
  using Ring = SliceRing<kConfig.stages, kStageBytes>;
  using SumReader = typename ReaderOf<kElement, kColumns>::Type;

  static DFA_DEVICE void load_keys(const KernelArgs& args, const WorkTile& work, unsigned smem) {
    const char* k = static_cast<const char*>(args.k) +
                    k_head_offset<kElement>(args, args.k_strides, work.seq, work.head);
    const int rows = work.seq.sk(args);
    load_slices<kElement, kConfig.block_k, kSlice.head_dim, kQSlices, kThreads>(
        smem, k, args.k_strides.row, work.key, rows, args.d);
    if constexpr (!kOfValues) {
      const char* v = static_cast<const char*>(args.v) +
                      k_head_offset<kElement>(args, args.v_strides, work.seq, work.head);
      load_slices<kElement, kConfig.block_k, kSlice.value_dim, kDoSlices, kThreads>(
          smem + kVAt, v, args.v_strides.row, work.key, rows, args.d_v);
    }
  }

  template <int kSliceColumns, typename Seqlen>
  static DFA_DEVICE void load_slice(const KernelArgs& args, const void* tensor,
                                    const KernelStrides& strides, const Seqlen& seq,
                                    const Place& place, int slice, int columns, unsigned to) {
    const char* head = static_cast<const char*>(tensor) + kBytes * kSliceColumns * slice +
                       q_head_offset<kElement>(args, strides, seq, place.head);
    load_tile<kElement, kConfig.block_q, kSliceColumns, kThreads>(
        to, head, strides.row, place.tile * kConfig.block_q, seq.sq(args),
        columns - slice * kSliceColumns);
  }

  // The slice-th of a step, where `own` is the block's of the sum.
  template <typename Seqlen>
  static DFA_DEVICE void load(const KernelArgs& args, Seqlen seq, Place place, int slice, int own,
                              unsigned to) {
    // Addresses are made anew for every slice: across the loop they would take registers.
    seq.forget([](int& value) { asm volatile("" : "+r"(value)); });
    asm volatile("" : "+r"(place.head));
    const bool last = slice == kStepSlices - 1;
    const bool of_do = last ? kOfValues : slice >= kQSlices;
    const int which = last ? own : of_do ? slice - kQSlices : slice;
    if (of_do) {
      load_slice<kSlice.value_dim>(args, args.d_o, args.o_strides, seq, place, which, args.d_v, to);
    } else {
      load_slice<kSlice.head_dim>(args, args.q, args.q_strides, seq, place, which, args.d, to);
    }
  }

  static DFA_DEVICE void store(const KernelArgs& args, const WorkTile& owned, const char* smem,
                               int slice) {
    const KernelStrides& strides = kOfValues ? args.v_strides : args.k_strides;
    store_tile<kElement, kConfig.block_k, kColumns, kThreads>(
        smem,
        static_cast<char*>(kOfValues ? args.dv : args.dk) + kBytes * kColumns * slice +
            k_head_offset<kElement>(args, strides, owned.seq, owned.head),
        strides.row, owned.key, owned.seq.sk(args),
        (kOfValues ? args.d_v : args.d) - slice * kColumns);
  }
};

template <BackwardConfig kConfig, bool kOfValues>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas)
    sm80_sliced_keys(const __grid_constant__ KernelArgs args) {
  using Kernel = Sm80SlicedKeys<kConfig, kOfValues>;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];

  const unsigned block = blockIdx.x / Kernel::kSumSlices;
  if constexpr (kConfig.varlen) {
    if (!has_packed_key_work_tile(args, block)) return;
  }
  const auto work = Kernel::work_tile_of(args, block);
  const int own = static_cast<int>(blockIdx.x % Kernel::kSumSlices);
  const int group = args.hq / args.hk;
  const auto mask = MaskOf<kConfig>::of(args, work.seq);
  const TileRange tiles = query_tiles(mask, work.key, kConfig.block_k, kConfig.block_q);
  const unsigned keys = ptx::shared_address(smem);

  // Steps walk the query heads of the group and the tiles of each from the last.
  const int count = tiles.end - tiles.begin;
  const int steps = count * group;
  const auto place_of = [&](int step) {
    const int round = step / count;
    return
        typename Kernel::Place{work.head * group + round, tiles.end - 1 - (step - round * count)};
  };
  const auto load = [&](int index, unsigned to) {
    const int step = index / Kernel::kStepSlices;
    if (step >= steps) return;
    Kernel::load(args, work.seq, place_of(step), index % Kernel::kStepSlices, own, to);
  };
  typename Kernel::Ring ring(keys + Kernel::kRingAt);
  Kernel::load_keys(args, work, keys);
  ring.start(load);

  const int warp_row = Kernel::warp_row(threadIdx.x);
  const unsigned k_rows = keys + Kernel::kBytes * warp_row * Kernel::kSlice.head_dim;
  const unsigned v_rows =
      keys + Kernel::kVAt + Kernel::kBytes * warp_row * Kernel::kSlice.value_dim;
  Sum<Kernel::kRows, Kernel::kColumns / 8> sum;
  clear(sum);

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const auto place = place_of(step);
    const int query = place.tile * kConfig.block_q;
    const long long rows_at = work.seq.padded_offset(args, place.head) + query;
    Sum<Kernel::kRows, Kernel::kQueries> p;
    multiply_slices<kElement, typename Kernel::DimReader, Kernel::kQSlices, Kernel::kKSliceBytes>(
        p, k_rows, ring, load);
    typename Kernel::Logits::template Shares<Kernel::kRows, Kernel::kQueries> shares;
    const int first_key = work.key + Kernel::warp_row(ptx::thread_index());
    typename Kernel::Logits(args, work.seq, place.head)
        .apply_transposed(args, p, first_key, query, shares);
    if (mask.needs(query, kConfig.block_q, work.key, kConfig.block_k)) {
      hide_masked_transposed(p, mask, first_key, query, Kernel::Logits::hidden(args));
    }
    Kernel::probabilities(args, p, args.lse_log2 + rows_at);
    typename Kernel::Operand left;  // p^T, or ds^T
    if constexpr (kOfValues) {
      round_to_left<kElement>(left, p);
    } else {
      Sum<Kernel::kRows, Kernel::kQueries> dp;
      multiply_slices<kElement, typename Kernel::ValueReader, Kernel::kDoSlices,
                      Kernel::kVSliceBytes>(dp, v_rows, ring, load);
      Kernel::score_gradients(typename Kernel::Dropout(args, 0), dp, p, args.delta + rows_at);
      Kernel::Logits::chain(dp, shares);
      round_to_left<kElement>(left, dp);
    }
    multiply<kElement, 1>(sum, left, Kernel::SumReader::by_rows(ring.next(load)));
  }

  ptx::wait_copies<0>();
  __syncthreads();  // the sum takes the place of k
  const auto owned = Kernel::work_tile_of(args, ptx::block_index() / Kernel::kSumSlices);
  float factor[Kernel::kRows][2];
#pragma unroll
  for (int m = 0; m < Kernel::kRows; ++m) factor[m][0] = factor[m][1] = kOfValues ? 1 : args.scale;
  stage_sums<kElement, 1>(smem, Kernel::warp_row(ptx::thread_index()), 0, sum, factor);
  __syncthreads();
  Kernel::store(args, owned, smem, static_cast<int>(ptx::block_index() % Kernel::kSumSlices));
}

}  // namespace dfa
