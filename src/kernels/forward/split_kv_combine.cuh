#pragma once

#include "kernels/forward/split_kv_args.h"
#include "kernels/ptx/order.cuh"
#include "kernels/tile/product.cuh"
#include "spec/forward_config.h"

// What sm80_split_kv does when the keys of a piece end: warps' outputs are combined, and, by the
// last block of a tile to end, those of its splits:
//   o = sum over parts of exp(lse of part - m) (o of part) / s,
//   s = sum over parts of exp(lse of part - m),   m = max over parts of lse
// in the order of the splits, whichever ends last.
namespace dfa {

template <ForwardConfig kConfig>
struct SplitKvCombine {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBytes = bytes_of(kElement);
  static constexpr DType kKvElement = kConfig.kv_element();
  static constexpr int kKvBytes = bytes_of(kKvElement);
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kWarps = kConfig.warps;
  static constexpr int kTileRows = kConfig.block_q, kQueryRows = kConfig.query_rows();
  static constexpr int kQueries = kTileRows / kQueryRows;
  static constexpr int kBlockK = kConfig.block_k, kWarpKeys = kConfig.warp_keys();
  static constexpr int kHeadDim = kConfig.head_dim, kValueDim = kConfig.value_dim;
  static constexpr int kRows = kTileRows / 16;  // fragments of a warp, likewise below
  static constexpr int kKeys = kWarpKeys / 8;
  static constexpr int kValues = kValueDim / 8;
  static constexpr int kStages = kConfig.stages;
  static_assert(kWarpKeys % 16 == 0 && kTileRows % 16 == 0 && kTileRows % kQueryRows == 0);

  // Offsets in shared memory.
  static constexpr int kFactorsAt = kConfig.smem_bytes() - kConfig.split_factor_bytes();
  static constexpr int kPlacesAt = kFactorsAt - 2 * kBlockK * kKeyPlaceBytes;
  static constexpr int kKBytes = kKvBytes * kBlockK * kHeadDim;
  static constexpr int kStageBytes = kKBytes + kKvBytes * kBlockK * kValueDim;
  static constexpr int kWidest = kHeadDim > kValueDim ? kHeadDim : kValueDim;
  static constexpr int kFirstStage = kBytes * kTileRows * kWidest;
  static_assert(kFirstStage % 128 == 0 && kKBytes % 128 == 0 && kStageBytes % 128 == 0);

  // Warps' outputs, in the place of keys.
  static constexpr int kOutputRow = kConfig.split_output_row();
  static constexpr int kLseAt = kFirstStage + 4 * kWarps * kTileRows * kOutputRow;
  static_assert(kLseAt + 4 * kWarps * kTileRows <= kPlacesAt);

  // What a thread block owns.
  struct Work {
    SeqlenInfo<kConfig.varlen> seq;
    int head;   // of args.hq / pack_gqa
    int query;  // the tile's first
    int split, splits;
    int first_part, next_part, part_step;  // of splits: SplitPiece

    DFA_DEVICE int kv_head(const KernelArgs& args) const {
      return head * kConfig.pack_gqa / (args.hq / args.hk);
    }
    DFA_DEVICE int query_of(int row) const { return query + row / kQueryRows; }
    DFA_DEVICE int head_of(int row) const { return head * kConfig.pack_gqa + row % kQueryRows; }
    DFA_DEVICE bool has(const KernelArgs& args, int row) const {
      return query_of(row) < seq.sq(args) && row % kQueryRows < kConfig.pack_gqa;
    }
    // Of one of the tile's splits, in SplitKvArgs::o and lse.
    DFA_DEVICE long long part_row(const SplitKvArgs& args, int of_split, int row) const {
      const int part = of_split == 0 ? first_part : next_part + (of_split - 1) * part_step;
      return (1LL * part * args.heads + head) * kTileRows + row;
    }
  };

  // Leaves a warp's output and the lse of its rows, to the base of 2, in shared memory.
  static DFA_DEVICE void leave(char* smem, const Sum<kRows, kValues>& output,
                               const float (&inverse)[kRows][2], const float (&lse)[kRows][2]) {
    leave_rows(smem, lse, [&](float* o, int row, int lane, int m, int half) {
      const float f = inverse[m][half];
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
        *reinterpret_cast<float2*>(o + row * kOutputRow + n * 8 + lane % 4 * 2) =
            make_float2(output[m][n][2 * half] * f, output[m][n][2 * half + 1] * f);
      }
    });
  }

  // Lse alone; what a lane has of a row's output is left by `leave_row`.
  template <typename LeaveRow>
  static DFA_DEVICE void leave_rows(char* smem, const float (&lse)[kRows][2],
                                    const LeaveRow& leave_row) {
    constexpr float kLog2E = 1.4426950408889634f;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    float* const o = reinterpret_cast<float*>(smem + kFirstStage) + warp * kTileRows * kOutputRow;
    float* const of_rows = reinterpret_cast<float*>(smem + kLseAt) + warp * kTileRows;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        if (lane % 4 == 0) of_rows[row] = lse[m][half] * kLog2E;
        leave_row(o, row, lane, m, half);
      }
    }
  }

  // Of parts of a row: the maximum of their lse, and what a sum of parts, each by exp2(its lse -
  // most), is multiplied by. A sink is one more logit without a value.
  struct RowScale {
    float most, factor, lse;
  };
  static DFA_DEVICE RowScale scale_of(float most, float sum) {
    if (most == -ptx::infinity()) return {0, 0, -ptx::infinity()};
    return {most, 1 / sum, most + ptx::log2(sum)};
  }
  static DFA_DEVICE RowScale with_sink(const KernelArgs& args, const RowScale& row, int head) {
    constexpr float kLog2E = 1.4426950408889634f;
    if constexpr (!kConfig.sink) return row;
    const float sink = args.logits.sinks[head] * kLog2E;
    const float highest = fmaxf(row.lse, sink);
    if (highest == -ptx::infinity()) return row;
    const float own = ptx::exp2(row.lse - highest), sum = own + ptx::exp2(sink - highest);
    return {row.most, row.factor * own / sum, highest + ptx::log2(sum)};
  }

  static DFA_DEVICE RowScale scale_of_warps(const char* smem, int row) {
    const float* const lse = reinterpret_cast<const float*>(smem + kLseAt) + row;
    float most = lse[0], sum = 0;
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) most = fmaxf(most, lse[warp * kTileRows]);
    if (most == -ptx::infinity()) return scale_of(most, 0);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += ptx::exp2(lse[warp * kTileRows] - most);
    return scale_of(most, sum);
  }

  static DFA_DEVICE void store(const KernelArgs& args, const Work& work, int row, int column,
                               const float4& x, const RowScale& scale) {
    const long long query = work.query_of(row);
    const int head = work.head_of(row);
    char* const to = static_cast<char*>(args.o) +
                     kBytes * (work.seq.q_offset(args, args.o_strides) +
                               query * args.o_strides.row + head * args.o_strides.head + column);
    const float f = scale.factor;
    *reinterpret_cast<uint2*>(to) =
        make_uint2(ptx::pack<kElement>(x.x * f, x.y * f), ptx::pack<kElement>(x.z * f, x.w * f));
    constexpr float kLn2 = 0.6931471805599453f;
    if (column == 0 && args.lse != nullptr) {
      args.lse[work.seq.lse_offset(args, head) + query] = scale.lse * kLn2;
    }
  }

  // Four columns of a row of this thread, one after the other: visit(row, column).
  template <typename Visit>
  static DFA_DEVICE void each_four(const KernelArgs& args, const Work& work, const Visit& visit) {
    constexpr int kFours = kValueDim / 4;
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kFours; i += kThreads) {
      const int row = i / kFours, column = i % kFours * 4;
      if (work.has(args, row) && column < args.d_v) visit(row, column);
    }
  }

  // Warps' parts become a split's, or the output where there is no other split.
  static DFA_DEVICE void combine_warps(const SplitKvForwardArgs& all, const Work& work,
                                       const char* smem) {
    const KernelArgs& args = all.args;
    const float* const lse = reinterpret_cast<const float*>(smem + kLseAt);
    const float* const o = reinterpret_cast<const float*>(smem + kFirstStage);
    each_four(args, work, [&](int row, int column) {
      RowScale scale = scale_of_warps(smem, row);
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        const int at = warp * kTileRows + row;
        add(sum, ptx::exp2(lse[at] - scale.most),
            *reinterpret_cast<const float4*>(o + at * kOutputRow + column));
      }
      if (work.splits == 1) {
        return store(args, work, row, column, sum, with_sink(args, scale, work.head_of(row)));
      }
      const long long to = work.part_row(all.splits, work.split, row);
      *reinterpret_cast<float4*>(all.splits.o + to * args.d_v + column) = make_float4(
          sum.x * scale.factor, sum.y * scale.factor, sum.z * scale.factor, sum.w * scale.factor);
      if (column == 0) all.splits.lse[to] = scale.lse;
    });
  }

  static DFA_DEVICE void add(float4& sum, float weight, const float4& x) {
    sum.x = fmaf(weight, x.x, sum.x);
    sum.y = fmaf(weight, x.y, sum.y);
    sum.z = fmaf(weight, x.z, sum.z);
    sum.w = fmaf(weight, x.w, sum.w);
  }

  // Have all splits of the tile ended with this one? The same answer for all threads.
  static DFA_DEVICE bool is_last(const SplitKvForwardArgs& all, const SplitPiece& piece,
                                 const Work& work, char* smem) {
    unsigned* const last = reinterpret_cast<unsigned*>(smem);
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned before = ptx::add_1_acquire_release(
          all.splits.ended + 1LL * piece.work * all.splits.heads + work.head);
      *last = before + 1 == static_cast<unsigned>(work.splits) ? 1 : 0;
    }
    __syncthreads();
    return *last != 0;
  }

  // By warps: what a row's splits are multiplied by.
  static DFA_DEVICE void scale_splits(const SplitKvForwardArgs& all, const Work& work,
                                      RowScale* rows) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int row = static_cast<int>(threadIdx.x / 32); row < kTileRows; row += kWarps) {
      if (!work.has(all.args, row)) continue;
      float most = -ptx::infinity(), sum = 0;
      for (int split = lane; split < work.splits; split += 32) {
        most = fmaxf(most, all.splits.lse[work.part_row(all.splits, split, row)]);
      }
      for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(ptx::kWholeWarp, most, i));
      const float from = most == -ptx::infinity() ? 0 : most;
      for (int split = lane; split < work.splits; split += 32) {
        sum += ptx::exp2(all.splits.lse[work.part_row(all.splits, split, row)] - from);
      }
      for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(ptx::kWholeWarp, sum, i);
      if (lane == 0) rows[row] = with_sink(all.args, scale_of(most, sum), work.head_of(row));
    }
  }

  static DFA_DEVICE void combine_splits(const SplitKvForwardArgs& all, const Work& work,
                                        char* smem) {
    RowScale* const rows = reinterpret_cast<RowScale*>(smem + kFirstStage);
    scale_splits(all, work, rows);
    __syncthreads();
    each_four(all.args, work, [&](int row, int column) {
      const RowScale scale = rows[row];
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
      for (int split = 0; split < work.splits; ++split) {
        const long long at = work.part_row(all.splits, split, row);
        add(sum, ptx::exp2(all.splits.lse[at] - scale.most),
            *reinterpret_cast<const float4*>(all.splits.o + at * all.args.d_v + column));
      }
      store(all.args, work, row, column, sum, scale);
    });
  }
};

}  // namespace dfa
