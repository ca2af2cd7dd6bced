#pragma once

#include "kernels/args.h"
#include "kernels/schedule/block_lists.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/product_tf32.cuh"
#include "kernels/tile/store.cuh"
#include "kernels/tile/tile.cuh"
#include "kernels/variant/dropout.cuh"
#include "spec/forward_config.h"

// FlashAttention forward for sm_80 and up, with mma.sync and cp.async, in fp16 and bf16,
// in tf32, and in fp32 with multiply-adds.
//
// A thread block owns block_q queries of one head and walks the keys they see; each warp owns
// block_q / warps of the rows and needs no other warp's results. Life of tile i of k and v, with
// two stages:
//   copies start      after the barrier of step i - 1, into the buffer that step i - 2 has left
//   copies complete   before the barrier of step i
//   read              in step i: scores, then weights times values
// One barrier a step. Limits: d, dv up to 256; rows 16-byte aligned; shared memory as smem_bytes().
namespace dfa {

template <ForwardConfig kConfig>
struct Sm80Forward {
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBytes = bytes_of(kElement);
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kWarpRows = kConfig.warp_rows();
  static constexpr bool kQInRegisters = kConfig.q_in_registers();
  static constexpr int kRows = kWarpRows / 16;  // fragments of a warp, likewise below
  static constexpr int kKeys = kConfig.block_k / 8;
  static constexpr int kDims = kConfig.head_dim / 16;
  static constexpr int kValues = kConfig.value_dim / 8;

  // Offsets in shared memory. The output takes the place of q.
  using Keys =
      KeyTile<kElement, kConfig.block_k, kConfig.head_dim, kConfig.value_dim, kConfig.paged>;
  static constexpr int kFirstStage = kConfig.smem_bytes() - kConfig.stages * Keys::kBytes;
  static_assert(kFirstStage % 128 == 0);

  using WorkTile = QueryWorkTile<kConfig.varlen>;
  using Logits = LogitsOf<kConfig>;
  using Dropout = DropoutOf<kConfig>;
  using QReader = typename ReaderOf<kElement, kConfig.head_dim>::Type;
  using VReader = typename ReaderOf<kElement, kConfig.value_dim>::Type;

  static DFA_DEVICE int warp_row(unsigned thread) {
    return static_cast<int>(thread / 32) * kWarpRows;
  }

  static DFA_DEVICE WorkTile work_tile_of(const KernelArgs& args, unsigned block) {
    return query_work_tile<kConfig.block_q, kConfig.varlen>(args, block);
  }

  static DFA_DEVICE void load_queries(const KernelArgs& args, const WorkTile& work,
                                      unsigned q_tile) {
    const char* q = static_cast<const char*>(args.q) +
                    q_head_offset<kElement>(args, args.q_strides, work.seq, work.head);
    load_tile<kElement, kConfig.block_q, kConfig.head_dim, kThreads>(
        q_tile, q, args.q_strides.row, work.query, work.seq.sq(args), args.d);
  }

  static DFA_DEVICE void store_lse(const KernelArgs& args, const WorkTile& work, int row,
                                   const float (&lse)[kRows][2]) {
    const int lane = static_cast<int>(ptx::thread_index() % 32);
    if (args.lse == nullptr || lane % 4 != 0) return;
    float* head = args.lse + work.seq.lse_offset(args, work.head);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row + m * 16 + half * 8 + lane / 4;
        if (query < work.seq.sq(args)) head[query] = lse[m][half];
      }
    }
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas)
    sm80_forward(const __grid_constant__ KernelArgsOf<kConfig> args) {
  using Kernel = Sm80Forward<kConfig>;
  using Keys = typename Kernel::Keys;
  constexpr int kStages = kConfig.stages;
  constexpr DType kElement = kConfig.element;
  extern __shared__ __align__(128) char smem[];

  if constexpr (kConfig.varlen) {
    if (!has_query_work_tile<kConfig.block_q>(args, blockIdx.x)) return;
  }
  const auto work = Kernel::work_tile_of(args, blockIdx.x);
  const auto mask = MaskOf<kConfig>::of(args, work.seq);
  const TileRange tiles = key_tiles(mask, work.query, kConfig.block_q, kConfig.block_k);
  const auto steps = KeySteps<kConfig.block_k, kConfig.blocks>::of(args, work.seq.batch, work.head,
                                                                   work.query, tiles);
  const unsigned q_tile = ptx::shared_address(smem);
  const auto stage_of = [&](int step) {
    return q_tile + Kernel::kFirstStage + static_cast<unsigned>(step) % kStages * Keys::kBytes;
  };

  const auto load = [&](int step) {
    const int tile = steps.at(step).tile;
    if (kConfig.blocks && tile < 0) return;
    Keys::template load<Kernel::kThreads>(args, work, tile, stage_of(step));
  };

  Kernel::load_queries(args, work, q_tile);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    const int step = steps.begin() + i;
    if (step < steps.end()) load(step);
    ptx::commit_copies();
  }

  const int warp_row = Kernel::warp_row(threadIdx.x);
  const auto q_rows =
      Kernel::QReader::by_rows(q_tile + Kernel::kBytes * warp_row * kConfig.head_dim);
  LeftOperand<Kernel::kRows, Kernel::kDims> q_operand;
  Sum<Kernel::kRows, Kernel::kValues> output;
  clear(output);
  OnlineSoftmax<Kernel::kRows, kStepwise<kElement>, typename Kernel::Logits> softmax(args);
  const typename Kernel::Logits logits(args, work.seq, work.head);
  const typename Kernel::Dropout dropout(args, work.seq.batch, work.head);

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

    if constexpr (kConfig.blocks) {
      if constexpr (Kernel::kQInRegisters) {
        if (step == steps.begin()) read_left(q_operand, q_rows);
      }
      if (tile < 0) continue;
    }

    const unsigned stage = stage_of(step);
    const auto k_columns = Kernel::QReader::by_columns(stage);
    const auto v_rows = Kernel::VReader::by_rows(stage + Keys::kKBytes);

    Sum<Kernel::kRows, Kernel::kKeys> scores;
    clear(scores);
    if constexpr (Kernel::kQInRegisters) {
      if (!kConfig.blocks && step == steps.begin()) read_left(q_operand, q_rows);
      multiply_rows<kElement>(scores, q_operand, k_columns);
    } else {
      multiply_rows<kElement>(scores, q_rows, k_columns);
    }
    logits.apply(args, scores, work.query + Kernel::warp_row(ptx::thread_index()),
                 tile * kConfig.block_k);
    softmax.orient(scores);
    if (mask.needs(work.query, kConfig.block_q, tile * kConfig.block_k, kConfig.block_k)) {
      hide_masked(scores, mask, work.query + Kernel::warp_row(ptx::thread_index()),
                  tile * kConfig.block_k, -ptx::infinity());
    }
    if constexpr (kConfig.blocks) {
      const BlockArgs& blocks = args.blocks;
      if (listed.bitmap != kFullBlock) {
        hide_unlisted(scores, blocks.bits_of(listed.bitmap), blocks.row_words,
                      work.query % blocks.block_q + Kernel::warp_row(ptx::thread_index()),
                      listed.part * kConfig.block_k, -ptx::infinity());
      }
    }
    softmax.step(scores, output);
    dropout.drop(args, scores, work.query + Kernel::warp_row(ptx::thread_index()),
                 tile * kConfig.block_k);

    typename Rounded<kElement, Kernel::kRows, Kernel::kKeys>::Type weights;
    round_to_left<kElement>(weights, scores);
    multiply<kElement, 1>(output, weights, v_rows);
  }

  float inverse[Kernel::kRows][2], lse[Kernel::kRows][2];
  if constexpr (!kConfig.sink) softmax.finish(inverse, lse);
  const auto owned = Kernel::work_tile_of(args, ptx::block_index());
  if constexpr (kConfig.sink) softmax.finish(inverse, lse, args.logits.sinks[owned.head]);
  Kernel::Dropout::scale(args, inverse);
  const int first_row = Kernel::warp_row(ptx::thread_index());
  Kernel::store_lse(args, owned, owned.query + first_row, lse);
  ptx::wait_copies<0>();
  __syncthreads();  // the output takes the place of q
  stage_sums<kElement, 1>(smem, first_row, 0, output, inverse);
  __syncthreads();
  store_tile<kElement, kConfig.block_q, kConfig.value_dim, Kernel::kThreads>(
      smem,
      static_cast<char*>(args.o) +
          q_head_offset<kElement>(args, args.o_strides, owned.seq, owned.head),
      args.o_strides.row, owned.query, owned.seq.sq(args), args.d_v);
}

}  // namespace dfa
