#pragma once

#include "kernels/backward/sm80_queries.cuh"
#include "kernels/schedule/sequence_tiles.cuh"

// Behind the delta kernel: the gradient of a bias, ds of each query and key before softcap's chain
// rule, summed over the batches and heads that the bias is one value for.
//
// A thread block owns a tile of the gradient and walks those batches and heads, computing the
// scores again: no atomics, nothing to clear, and one order of every sum. Where no query of a tile
// sees a key, its gradient is 0.
//   dbias = sum of p * (do v^T - delta)
namespace dfa {

// Which tile of the gradient, and the batches and heads whose ds it sums.
struct BiasGradientWork {
  int batch, batches, head, heads, query, key;

  template <int kBlockQ, int kBlockK>
  static DFA_DEVICE BiasGradientWork of(const KernelArgs& args, unsigned block) {
    const BiasArgs& bias = args.logits.bias;
    const unsigned k_tiles = (args.sk + kBlockK - 1) / kBlockK;
    const unsigned q_tiles = (args.sq + kBlockQ - 1) / kBlockQ;
    const unsigned head = block / k_tiles / q_tiles;
    return {static_cast<int>(head) / bias.heads,
            args.b / bias.batches,
            static_cast<int>(head) % bias.heads,
            args.hq / bias.heads,
            static_cast<int>(block / k_tiles % q_tiles) * kBlockQ,
            static_cast<int>(block % k_tiles) * kBlockK};
  }
};

template <BackwardConfig kConfig>
struct Sm80BiasGradient {
  using Kernel = Sm80Queries<kConfig>;
  using Keys = typename Kernel::Keys;
  using Gradient = Sum<Kernel::kRows, Kernel::kKeys>;
  static constexpr DType kElement = kConfig.element;

  static DFA_DEVICE SeqlenInfo<kConfig.varlen> sequence(const KernelArgs& args, int batch) {
    if constexpr (kConfig.varlen) {
      return SeqlenInfo<true>::of(SequenceTiles<false>::sequence(args, batch));
    } else {
      return {batch};
    }
  }

  // Adds ds of one head; all threads of the block come here, or none does.
  static DFA_DEVICE void add(const KernelArgs& args, const typename Kernel::WorkTile& work,
                             int tile, unsigned smem, Gradient& sum) {
    const auto mask = MaskOf<kConfig>::of(args, work.seq);
    const TileRange seen = key_tiles(mask, work.query, kConfig.dq_block_q, kConfig.dq_block_k);
    if (work.query >= work.seq.sq(args) || tile < seen.begin || tile >= seen.end) return;
    const unsigned k_tile = smem + Kernel::kFirstStage;
    __syncthreads();  // all have read the tiles of the head before
    Kernel::load_queries(args, work, smem);
    Keys::template load<Kernel::kThreads>(args, work, tile, k_tile);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();

    const int warp_row = Kernel::warp_row(threadIdx.x), first = work.query + warp_row;
    const long long values_at = work.seq.padded_offset(args, work.head) + first;
    float lse[Kernel::kRows][2], delta[Kernel::kRows][2];
    Kernel::read_row_values(args.lse_log2 + values_at, lse);
    Kernel::read_row_values(args.delta + values_at, delta);
    Gradient p, dp;
    clear(p);
    clear(dp);
    multiply_rows<kElement>(
        p, Kernel::DimReader::by_rows(smem + Kernel::kBytes * warp_row * kConfig.head_dim),
        Kernel::DimReader::by_columns(k_tile));
    typename Kernel::Logits(args, work.seq, work.head)
        .apply(args, p, first, tile * kConfig.dq_block_k);
    if (mask.needs(work.query, kConfig.dq_block_q, tile * kConfig.dq_block_k, kConfig.dq_block_k)) {
      hide_masked(p, mask, first, tile * kConfig.dq_block_k, Kernel::Logits::hidden(args));
    }
    Kernel::probabilities(args, p, lse);
    multiply_rows<kElement>(
        dp,
        Kernel::ValueReader::by_rows(smem + Kernel::kQBytes +
                                     Kernel::kBytes * warp_row * kConfig.value_dim),
        Kernel::ValueReader::by_columns(k_tile + Keys::kKBytes));
    const typename Kernel::Dropout dropout(args, work.seq.batch, work.head);
    dropout.mark(args, p, first, tile * kConfig.dq_block_k);
    Kernel::score_gradients(dropout, dp, p, delta);
#pragma unroll
    for (int m = 0; m < Kernel::kRows; ++m) {
#pragma unroll
      for (int n = 0; n < Kernel::kKeys; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] += dp[m][n][i];
      }
    }
  }

  static DFA_DEVICE void store(const KernelArgs& args, const BiasGradientWork& work,
                               const Gradient& sum) {
    const BiasArgs& bias = args.logits.bias;
    float* const to = bias.gradients + work.batch * bias.gradient_strides.batch +
                      work.head * bias.gradient_strides.head;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int query = work.query + Kernel::warp_row(threadIdx.x) + lane / 4;
    const int key = work.key + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < Kernel::kRows; ++m) {
#pragma unroll
      for (int n = 0; n < Kernel::kKeys; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = query + m * 16 + i / 2 * 8, column = key + n * 8 + i % 2;
          if (row >= args.sq || column >= args.sk) continue;
          to[row * bias.gradient_strides.row + column] = sum[m][n][i];
        }
      }
    }
  }
};

template <BackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.dq_threads())
    sm80_bias_gradient(const __grid_constant__ KernelArgs args) {
  using Gradients = Sm80BiasGradient<kConfig>;
  extern __shared__ __align__(128) char smem[];
  if (args.logits.bias.gradients == nullptr) return;  // not wanted
  const auto work = BiasGradientWork::of<kConfig.dq_block_q, kConfig.dq_block_k>(args, blockIdx.x);
  typename Gradients::Gradient sum;
  clear(sum);
  for (int b = 0; b < work.batches; ++b) {
    const auto seq = Gradients::sequence(args, work.batch + b);
    for (int h = 0; h < work.heads; ++h) {
      const int head = work.head + h;
      Gradients::add(args, {seq, head, head / (args.hq / args.hk), work.query},
                     work.key / kConfig.dq_block_k, ptx::shared_address(smem), sum);
    }
  }
  Gradients::store(args, work, sum);
}

}  // namespace dfa
