#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/forward/sm90_forward_block.cuh"
#include "kernels/forward/sm90_store.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/softmax/lazy_rescale_softmax.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/softmax/tile_mask.h"
#include "kernels/tile/panel.h"
#include "kernels/tile/panel_rows.cuh"
#include "kernels/tile/product.cuh"

namespace dfa {

// A warpgroup with queries of sm90_forward: single steps of the recurrence, in the order of their
// use, and what is told to the producer. Sm90Forward::compute puts them together.
template <ForwardConfig kConfig>
struct Sm90ForwardConsumer : Sm90ForwardBlock<kConfig> {
  using Block = Sm90ForwardBlock<kConfig>;
  using Block::kBlockK, Block::kDims, Block::kElement, Block::kGroups, Block::kHeld, Block::kKeys,
      Block::kPacked, Block::kPaired, Block::kQStages, Block::kQueryRows, Block::kSplitKv,
      Block::kSteps;
  using typename Block::Dropout, typename Block::Logits, typename Block::Order,
      typename Block::QRing, typename Block::Rings, typename Block::Seqlen;

  // Of a warp with queries. A register holds the thread's index: reading it anew takes tens of
  // cycles, at places that products wait for.
  static DFA_DEVICE unsigned lane() { return ptx::kept_thread_index() % 32; }
  static DFA_DEVICE int warp_row() {
    return static_cast<int>(ptx::kept_thread_index() / 32 % 4) * 16;
  }

  // Those that a warpgroup's own queries see; the others it lets pass.
  static DFA_DEVICE TileRange own_tiles(const Sm90ForwardArgs& a, const Seqlen& seq, int row) {
    const int query = row / kQueryRows;
    if (query >= seq.sq(a.args)) return {0, 0};
    return key_tiles(MaskOf<kConfig>::of(a.args, seq), query, kGroupRows / kQueryRows, kBlockK);
  }

  using Scores = float[kKeys][4];
  using Held = unsigned[kHeld > 0 ? kHeld : 1][4];
  using Weights = unsigned[kSteps][4];
  using Store = Sm90Store<kConfig>;
  using Output = typename Store::Output;

  static DFA_DEVICE void hold(Held& held, unsigned q) {
    if constexpr (kHeld > 0) load_rows<kGroupRows>(q, warp_row(), held, lane());
  }

  static DFA_DEVICE void multiply_scores(Scores& scores, Held& held, unsigned q, unsigned k) {
    const Descriptor left = k_in_columns(q), right = k_in_columns(k);
    if constexpr (kHeld > 0) ptx::pin(held);
    ptx::fence_products();
    if constexpr (kHeld > 0) {
      ptx::multiply_registers_rows<kElement, 0>(scores, held[0], right.bits());
    } else {
      ptx::multiply_shared<kElement, 0>(scores, left.bits(), right.bits());
    }
#pragma unroll
    for (int step = 1; step < kHeld; ++step) {
      ptx::multiply_registers_rows<kElement, 1>(scores, held[step],
                                                right.moved(column_step<kBlockK>(step)).bits());
    }
#pragma unroll
    for (int step = kHeld > 0 ? kHeld : 1; step < kDims; ++step) {
      ptx::multiply_shared<kElement, 1>(scores, left.moved(column_step<kGroupRows>(step)).bits(),
                                        right.moved(column_step<kBlockK>(step)).bits());
    }
    ptx::commit_products();
  }

  static DFA_DEVICE void multiply_values(Output& output, const Weights& weights, unsigned v) {
    const Descriptor right = k_in_rows<kBlockK>(v);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::multiply_registers<kElement>(output, weights[step], right.moved(row_step(step)).bits());
    }
    ptx::commit_products();
  }

  static DFA_DEVICE void round(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      weights[k][0] = ptx::pack<kElement>(scores[2 * k][0], scores[2 * k][1]);
      weights[k][1] = ptx::pack<kElement>(scores[2 * k][2], scores[2 * k][3]);
      weights[k][2] = ptx::pack<kElement>(scores[2 * k + 1][0], scores[2 * k + 1][1]);
      weights[k][3] = ptx::pack<kElement>(scores[2 * k + 1][2], scores[2 * k + 1][3]);
    }
  }

  // What becomes of a warp's scores, and where copies of its biases lie.
  static DFA_DEVICE Logits logits_of(const KernelArgs& args, const Rings& rings, const Order& order,
                                     int row, int group) {
    const int first = group * kGroupRows + warp_row();
    return {args, order.seq, order.head, row + warp_row(),
            rings.smem + Block::kBiasAt + static_cast<unsigned>(first * bias_row_bytes(kBlockK))};
  }

  // Are scores to be negated?
  static DFA_DEVICE bool negates(float scale) { return Logits::kPlain && scale < 0; }

  // Keys whose scores are used as they come: all of the group's queries see them. Under a negative
  // scale there are none.
  static DFA_DEVICE TileRange plain_keys(const KernelArgs& args, const Seqlen& seq, int row,
                                         float scale) {
    if (negates(scale)) return {0, 0};
    return seen_by_all(MaskOf<kConfig>::of(args, seq), row / kQueryRows, kGroupRows / kQueryRows);
  }

  // Makes logits, which have a sign of their own, or negates under a negative scale; hides what the
  // mask hides.
  static DFA_DEVICE void prepare(Scores& scores, const KernelArgs& args, const Logits& logits,
                                 const Seqlen& seq, const TileRange& plain, int row, int tile,
                                 float scale) {
    logits.apply(args, scores, tile * kBlockK);
    if (tile * kBlockK >= plain.begin && tile * kBlockK + kBlockK <= plain.end) return;
    if (negates(scale)) [[unlikely]] {
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = -scores[n][i];
      }
    }
    const MaskOf<kConfig> mask = MaskOf<kConfig>::of(args, seq);
    if (mask.needs(row / kQueryRows, kGroupRows / kQueryRows, tile * kBlockK, kBlockK)) {
      hide_masked<kQueryRows>(reinterpret_cast<Sum<1, kKeys>&>(scores), mask, row + warp_row(),
                              tile * kBlockK, -ptx::infinity());
    }
  }

  // The group whose turn it is puts its products into the tensor cores' queue, then the next may.
  static DFA_DEVICE void wait_pingpong(int group) {
    if constexpr (kConfig.pingpong && kGroups > 1) ptx::sync_warps(1 + group, 256);
  }
  static DFA_DEVICE void pass_pingpong(int group) {
    if constexpr (kConfig.pingpong && kGroups > 1) {
      ptx::arrive_warps(1 + (group + 1 == kGroups ? 0 : group + 1), 256);
    }
  }

  // `tiles` tiles of k and v that are of no use to this group, and turns at the tensor cores.
  static DFA_DEVICE void let_pass(Rings& rings, int tiles, int turns, int group) {
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      rings.k.wait_full();
      rings.v.wait_full();
      __syncwarp();  // no lane still waits for what the first one gives back
      rings.k.release(lane());
      rings.k.next();
      rings.v.release(lane());
      rings.v.next();
      if (i >= turns) continue;
      wait_pingpong(group);
      pass_pingpong(group);
    }
  }

  // The weights of a tile, of which scores become. Is the output to be rescaled before it takes
  // them?
  static DFA_DEVICE bool softmax_step(LazyRescaleSoftmax& softmax, Scores& scores,
                                      bool& updates_max, bool always) {
    bool moved = false;
    if constexpr (!kConfig.static_max()) {
      moved = softmax.update_max(scores);
    } else if (updates_max) [[unlikely]] {
      moved = softmax.update_max(scores);
      updates_max = always || softmax.open();
    }
    softmax.exp2(scores);
    return moved;
  }

  // The same of a work tile's first tile. For a reference that stays the keys in front will do.
  static DFA_DEVICE void first_softmax_step(LazyRescaleSoftmax& softmax, Scores& scores,
                                            bool& updates_max, bool always) {
    constexpr int kInFront = 4;
    updates_max = always;
    if (kConfig.static_max() && !always) {
      softmax.begin(reinterpret_cast<const float(&)[kInFront][4]>(scores));
      updates_max = softmax.open();
    }
    softmax_step(softmax, scores, updates_max, always);
  }

  // Weights that are dropped become 0, behind the softmax, whose sums have all.
  static DFA_DEVICE void drop(Scores& scores, const KernelArgs& args, const Dropout& dropout,
                              int row, int tile) {
    dropout.drop(args, reinterpret_cast<Sum<1, kKeys>&>(scores), row + warp_row(), tile * kBlockK);
  }

  // What splits of the keys leave is joined with the sink later.
  static DFA_DEVICE float finish(const LazyRescaleSoftmax& softmax, const KernelArgs& args,
                                 int head, int row, int piece, float (&inverse)[2],
                                 float (&lse)[2]) {
    if constexpr (kConfig.sink) {
      if (!kSplitKv || piece < 0) {
        float sinks[2];
        Store::sinks(args, head, row + warp_row(), sinks);
        return softmax.finish(inverse, lse, sinks);
      }
    }
    return softmax.finish(inverse, lse);
  }

  // A pair does its work tiles again together.
  static DFA_DEVICE void ask(const Rings& rings, int place) {
    if constexpr (kPaired) {
      rings.notes().ask_both(place);
    } else {
      rings.notes().ask(place);
    }
  }
  static DFA_DEVICE void arrive_at_meeting(const Rings& rings) {
    if constexpr (kPaired) {
      ptx::fence_cluster();
      if (lane() < 2) ptx::arrive_there(ptx::of_pair(rings.notes().meeting(), lane()));
    } else {
      if (lane() == 0) ptx::arrive(rings.notes().meeting());
    }
  }

  // Of a work tile that is done: is it to be done again?
  static DFA_DEVICE void ask_where_left_range(const Rings& rings, const Order& order, int row,
                                              float sums, const Output& output) {
    if constexpr (!kConfig.static_max()) return;
    if (!order.again && Store::left_range(row, sums, output)) ask(rings, order.place);
    if (order.again) ptx::wait_stores_written();
  }

  // Where all agree which work tiles are done again. An output may still be on its way.
  static DFA_DEVICE void meet(const Rings& rings, bool stored) {
    if (kQStages > 1 && stored) release_stored(rings.q, 1);
    rings.q.release(lane());
    arrive_at_meeting(rings);
  }

  // In rows that are left nothing asks for the work tile to be done again: bits would depend on
  // another group's queries.
  static DFA_DEVICE void forget_left_rows(LazyRescaleSoftmax& softmax, int row) {
    if constexpr (kPacked == kQueryRows) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!Store::is_of_head(row, half)) softmax.forget(half);
    }
  }

  // The product of weights and v is done, its stage empty.
  static DFA_DEVICE void end_values(Output& output, Weights& weights, Rings& rings,
                                    bool under_way) {
    ptx::wait_products<0>();
    ptx::pin(output);
    ptx::pin(weights);
    if (!under_way) return;
    rings.v.release(lane());
    rings.v.next();
  }

  // The stage `back` before this one: its output has left.
  static DFA_DEVICE void release_stored(const QRing& ring, int back) {
    if (!ptx::elect()) return;  // the lane that stored
    ptx::wait_stores_read();
    ptx::arrive(ring.barriers + 8 * (kQStages + (ring.stage + kQStages - back) % kQStages));
  }
};

}  // namespace dfa
