#pragma once

#include "kernels/args.h"
#include "kernels/schedule/block_lists.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/product_tf32.cuh"
#include "kernels/tile/store.cuh"
#include "kernels/tile/tile.cuh"
#include "kernels/variant/dropout.cuh"
#include "spec/backward_config.h"

// FlashAttention backward, dq, for sm_80 and up, in fp16 and bf16,
// in tf32, and in fp32 with multiply-adds.
//
// A thread block owns dq_block_q queries of one head and walks the keys they see, computing the
// scores again: two more products than sums from the other kernel would take, but no atomics, no
// partial sums in memory, and an order that is fixed.
//   p  = exp2(scale_log2 q k^T - lse_log2), or of the logits that LogitTransform makes of q k^T
//   ds = p * (do v^T - delta)                     dq += ds k
namespace dfa {

template <BackwardConfig kConfig>
struct Sm80Queries {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBytes = bytes_of(kElement);
  static constexpr int kThreads = kConfig.dq_threads();
  static constexpr int kWarpRows = kConfig.dq_warp_rows();
  static constexpr int kRows = kWarpRows / 16;  // fragments of a warp, likewise below
  static constexpr int kKeys = kConfig.dq_block_k / 8;
  static constexpr int kDims = kConfig.head_dim / 8;

  // Offsets in shared memory: q, do, then stages of k and v.
  static constexpr int kQBytes = kBytes * kConfig.dq_block_q * kConfig.head_dim;
  static constexpr int kFirstStage = kQBytes + kBytes * kConfig.dq_block_q * kConfig.value_dim;
  using Keys = KeyTile<kElement, kConfig.dq_block_k, kConfig.head_dim, kConfig.value_dim>;
  static_assert(kFirstStage + kConfig.stages * Keys::kBytes == kConfig.dq_smem_bytes());
  static_assert(kQBytes % 128 == 0 && kFirstStage % 128 == 0);

  using DimReader = typename ReaderOf<kElement, kConfig.head_dim>::Type;
  using ValueReader = typename ReaderOf<kElement, kConfig.value_dim>::Type;

  static DFA_DEVICE int warp_row(unsigned thread) {
    return static_cast<int>(thread / 32) * kWarpRows;
  }

  using WorkTile = QueryWorkTile<kConfig.varlen>;
  using Logits = LogitsOf<kConfig>;
  using Dropout = DropoutOf<kConfig>;
  static DFA_DEVICE WorkTile work_tile_of(const KernelArgs& args, unsigned block) {
    return query_work_tile<kConfig.dq_block_q, kConfig.varlen>(args, block);
  }

  static DFA_DEVICE void load_queries(const KernelArgs& args, const WorkTile& work, unsigned smem) {
    const char* q = static_cast<const char*>(args.q) +
                    q_head_offset<kElement>(args, args.q_strides, work.seq, work.head);
    const char* d_o = static_cast<const char*>(args.d_o) +
                      q_head_offset<kElement>(args, args.o_strides, work.seq, work.head);
    load_tile<kElement, kConfig.dq_block_q, kConfig.head_dim, kThreads>(
        smem, q, args.q_strides.row, work.query, work.seq.sq(args), args.d);
    load_tile<kElement, kConfig.dq_block_q, kConfig.value_dim, kThreads>(
        smem + kQBytes, d_o, args.o_strides.row, work.query, work.seq.sq(args), args.d_v);
  }

  // What the delta kernel left for the rows of this thread.
  static DFA_DEVICE void read_row_values(const float* values, float (&of_rows)[kRows][2]) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) of_rows[m][half] = values[m * 16 + half * 8 + lane / 4];
    }
  }

  static DFA_DEVICE void probabilities(const KernelArgs& args, Sum<kRows, kKeys>& scores,
                                       const float (&lse)[kRows][2]) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[m][n][i] = probability<kElement, Logits>(args, scores[m][n][i], lse[m][i / 2]);
        }
      }
    }
  }

  static DFA_DEVICE void score_gradients(const Dropout& dropout, Sum<kRows, kKeys>& dp,
                                         const Sum<kRows, kKeys>& p,
                                         const float (&delta)[kRows][2]) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          dp[m][n][i] = dropout.score_gradient(p[m][n][i], dp[m][n][i], delta[m][i / 2]);
        }
      }
    }
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.dq_threads(), kConfig.dq_ctas)
    sm80_backward_queries(const __grid_constant__ KernelArgsOf<kConfig> args) {
  using Kernel = Sm80Queries<kConfig>;
  using Keys = typename Kernel::Keys;
  constexpr int kStages = kConfig.stages;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];

  if constexpr (kConfig.varlen) {
    if (!has_query_work_tile<kConfig.dq_block_q>(args, blockIdx.x)) return;
  }
  const auto work = Kernel::work_tile_of(args, blockIdx.x);
  const auto mask = MaskOf<kConfig>::of(args, work.seq);
  const TileRange tiles = key_tiles(mask, work.query, kConfig.dq_block_q, kConfig.dq_block_k);
  const auto steps = KeySteps<kConfig.dq_block_k, kConfig.blocks>::of(args, work.seq.batch,
                                                                      work.head, work.query, tiles);
  const unsigned queries = ptx::shared_address(smem);
  const auto stage_of = [&](int step) {
    return queries + Kernel::kFirstStage + static_cast<unsigned>(step) % kStages * Keys::kBytes;
  };

  const auto load = [&](int step) {
    const int tile = steps.at(step).tile;
    if (kConfig.blocks && tile < 0) return;
    Keys::template load<Kernel::kThreads>(args, work, tile, stage_of(step));
  };

  Kernel::load_queries(args, work, queries);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    const int step = steps.begin() + i;
    if (step < steps.end()) load(step);
    ptx::commit_copies();
  }

  const int warp_row = Kernel::warp_row(threadIdx.x);
  const auto q_rows =
      Kernel::DimReader::by_rows(queries + Kernel::kBytes * warp_row * kConfig.head_dim);
  const auto do_rows = Kernel::ValueReader::by_rows(queries + Kernel::kQBytes +
                                                    Kernel::kBytes * warp_row * kConfig.value_dim);
  const long long values_at = work.seq.padded_offset(args, work.head) + work.query + warp_row;
  float lse[Kernel::kRows][2], delta[Kernel::kRows][2];
  Kernel::read_row_values(args.lse_log2 + values_at, lse);
  Kernel::read_row_values(args.delta + values_at, delta);
  const typename Kernel::Logits logits(args, work.seq, work.head);
  const typename Kernel::Dropout dropout(args, work.seq.batch, work.head);
  Sum<Kernel::kRows, Kernel::kDims> dq;
  clear(dq);

#pragma unroll 1
  for (int step = steps.begin(); step < steps.end(); ++step) {
    ptx::wait_copies<kStages - 2>();
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < steps.end()) load(next);
    ptx::commit_copies();
    if constexpr (kStages == 1) __syncthreads();
    const ListedTile listed = steps.at(step);
    const int tile = listed.tile;

    if (kConfig.blocks && tile < 0) continue;

    const unsigned k_tile = stage_of(step);
    Sum<Kernel::kRows, Kernel::kKeys> p, dp;
    clear(p);
    clear(dp);
    multiply_rows<kElement>(p, q_rows, Kernel::DimReader::by_columns(k_tile));
    typename Kernel::Logits::template Shares<Kernel::kRows, Kernel::kKeys> shares;
    logits.apply(args, p, work.query + Kernel::warp_row(ptx::thread_index()),
                 tile * kConfig.dq_block_k, shares);
    if (mask.needs(work.query, kConfig.dq_block_q, tile * kConfig.dq_block_k, kConfig.dq_block_k)) {
      hide_masked(p, mask, work.query + Kernel::warp_row(ptx::thread_index()),
                  tile * kConfig.dq_block_k, Kernel::Logits::hidden(args));
    }
    if constexpr (kConfig.blocks) {
      const BlockArgs& blocks = args.blocks;
      if (listed.bitmap != kFullBlock) {
        hide_unlisted(p, blocks.bits_of(listed.bitmap), blocks.row_words,
                      work.query % blocks.block_q + Kernel::warp_row(ptx::thread_index()),
                      listed.part * kConfig.dq_block_k, Kernel::Logits::hidden(args));
      }
    }
    Kernel::probabilities(args, p, lse);
    dropout.mark(args, p, work.query + Kernel::warp_row(ptx::thread_index()),
                 tile * kConfig.dq_block_k);
    multiply_rows<kElement>(dp, do_rows, Kernel::ValueReader::by_columns(k_tile + Keys::kKBytes));
    Kernel::score_gradients(dropout, dp, p, delta);
    Kernel::Logits::chain(dp, shares);

    typename Rounded<kElement, Kernel::kRows, Kernel::kKeys>::Type ds;
    round_to_left<kElement>(ds, dp);
    multiply<kElement, 1>(dq, ds, Kernel::DimReader::by_rows(k_tile));
  }

  ptx::wait_copies<0>();
  __syncthreads();  // dq takes the place of q
  const auto owned = Kernel::work_tile_of(args, ptx::block_index());
  float factor[Kernel::kRows][2];
#pragma unroll
  for (int m = 0; m < Kernel::kRows; ++m) factor[m][0] = factor[m][1] = args.scale;
  stage_sums<kElement, 1>(smem, Kernel::warp_row(ptx::thread_index()), 0, dq, factor);
  __syncthreads();
  store_tile<kElement, kConfig.dq_block_q, kConfig.head_dim, Kernel::kThreads>(
      smem,
      static_cast<char*>(args.dq) +
          q_head_offset<kElement>(args, args.q_strides, owned.seq, owned.head),
      args.q_strides.row, owned.query, owned.seq.sq(args), args.d);
}

}  // namespace dfa
