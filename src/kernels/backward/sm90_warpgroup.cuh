#pragma once

#include "kernels/backward/sm90_fragments.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/panel_rows.cuh"

// What a warpgroup of Hopper's backward kernels does that owns keys, beside products: which thread
// and keys it has, rows of queries, what a mask hides, and gradients on their way out.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Warpgroup : Sm90Fragments<kConfig> {
  using Fragments = Sm90Fragments<kConfig>;
  using Fragments::kBlockK;
  using Fragments::kElement;
  using Fragments::kHalf;
  using Fragments::kQueries;
  using typename Fragments::Pairs;
  using typename Fragments::Scores;
  using Seqlen = SeqlenInfo<kConfig.varlen>;
  using WorkTile = KeyWorkTile<kConfig.varlen>;

  // Where registers last for the thread's index: reading it anew takes tens of cycles, at places
  // that products wait for.
  static constexpr bool kThreadKept =
      kConfig.cluster == 2 && (kConfig.persistent || kConfig.head_dim > 64);
  static DFA_DEVICE unsigned thread() {
    return kThreadKept ? ptx::kept_thread_index() : ptx::thread_index();
  }
  static DFA_DEVICE unsigned lane() { return thread() % 32; }

  // Of the 64 keys that a warpgroup owns, those of this warp. Where sums come as they come there is
  // no register for it.
  static DFA_DEVICE int warp_row() {
    return warp_row_of(kConfig.dq_serialized() ? thread() : ptx::thread_index());
  }
  static DFA_DEVICE int warp_row_of(unsigned thread) {
    return static_cast<int>(thread / 32 % 4) * 16;
  }

  static DFA_DEVICE void load_pairs(Pairs& pairs, unsigned rows) {
    const unsigned from = rows + thread() % 4 * 8;
#pragma unroll
    for (int n = 0; n < kQueries; ++n) pairs[n] = ptx::load_shared_2(from + n * 32);
  }

  static DFA_DEVICE void hide(Scores& scores, const KernelArgs& args, const Seqlen& seq, int query,
                              int key) {
    const MaskOf<kConfig> mask = MaskOf<kConfig>::of(args, seq);
    if (mask.needs(query, kHalf, key, kGroupRows)) hide_some(scores, args, mask, query, key);
  }
  static DFA_DEVICE void hide_some(Scores& scores, const KernelArgs& args,
                                   const MaskOf<kConfig>& mask, int query, int key) {
    hide_masked_transposed(reinterpret_cast<Sum<1, kQueries>&>(scores), mask, key + warp_row(),
                           query, hidden(args));
  }
  static DFA_DEVICE float hidden(const KernelArgs& args) {
    return kConfig.softcap || kConfig.text ? -ptx::infinity() : PlainLogits::hidden(args);
  }

  // Of queries of a head from `query` on and the warpgroup's keys, of which `key` is the first.
  static DFA_DEVICE typename Fragments::Alibi alibi_of(const KernelArgs& args, const Seqlen& seq,
                                                       int head, int query, int key) {
    constexpr float kLog2E = 1.4426950408889634f;
    const int of_lane = static_cast<int>(lane());
    const int after =
        key + warp_row() + of_lane / 4 - query - of_lane % 4 * 2 - (seq.sk(args) - seq.sq(args));
    const float slope = args.logits.alibi_slopes[seq.batch * args.logits.slopes_of_batch + head];
    return {slope * kLog2E, {static_cast<float>(after), static_cast<float>(after + 8)}};
  }

  // dk or dv of a warp's keys, through its rows of k or v. `part`: which 64 of the block's keys.
  // kStride: from one of its panels to the next.
  template <int kStride = panel_bytes(kBlockK), int kFragments>
  static DFA_DEVICE void store_gradient(const KernelArgs& args, const TensorMap& map, unsigned tile,
                                        int part, const WorkTile& work,
                                        const float (&sum)[kFragments][4], float factor) {
    unsigned rounded[kFragments / 2][4];
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rounded[n / 2][n % 2 * 2 + half] =
            ptx::pack<kElement>(sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor);
      }
    }
    const int first = part * kGroupRows + warp_row();
    store_rows<kBlockK, kStride>(tile, first, rounded, lane());
    send_gradient<kStride, kFragments>(args, map, tile, first, work);
  }

  // Likewise of rows of a warp, from `first` on, that are there as they leave.
  template <int kStride, int kFragments>
  static DFA_DEVICE void send_gradient(const KernelArgs& args, const TensorMap& map, unsigned tile,
                                       int first, const WorkTile& work) {
    ptx::fence_async();
    __syncwarp();
    if (!ptx::elect()) return;
#pragma unroll
    for (int panel = 0; panel < panels(kFragments * 8); ++panel) {
      ptx::store_box<kConfig.varlen>(
          map, tile + panel * kStride + first * kPanelRowBytes, panel * kPanelColumns,
          work.seq.k_box_row(args, work.key + first), work.head, work.seq.k_box_batch());
    }
    ptx::commit_stores();
  }
};

}  // namespace dfa
