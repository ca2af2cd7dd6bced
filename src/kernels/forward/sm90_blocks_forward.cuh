#pragma once

#include "kernels/forward/sm90_blocks_args.h"
#include "kernels/forward/sm90_forward.cuh"
#include "kernels/schedule/block_lists.cuh"
#include "kernels/schedule/listed_scheduler.cuh"

// Hopper's forward over lists of blocks: sm90_forward whose tiles of keys are those of a list.
//
// A work tile lies in one block of queries, whose list the copying thread walks from its end to its
// beginning. It passes over what the mask hides and entries that are no block, and beside each tile
// of k it tells which one it is, whether bits hide some of it, and whether another follows. All
// warpgroups with queries take every tile that was copied. The words of a bitmap are loaded while
// the scores are on their way. Work tiles come from a counter, those with the longest lists first
// (block_order.cuh). Limits beside those of sm90_forward: no pairs, no packed heads, no splits;
// block_k in multiples of 32.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90BlocksForward : Sm90Forward<kConfig> {
  using Base = Sm90Forward<kConfig>;
  using Base::ask_where_left_range, Base::end_values, Base::finish, Base::first_softmax_step,
      Base::hold, Base::kBlockK, Base::kGroups, Base::kKeys, Base::kListedStepsAt, Base::kNotedAt,
      Base::kOutputAt, Base::kQGroupBytes, Base::kQStages, Base::kValues, Base::lane, Base::load_q,
      Base::meet, Base::multiply_scores, Base::multiply_values, Base::pass_pingpong,
      Base::plain_keys, Base::prepare, Base::release_stored, Base::round, Base::send,
      Base::softmax_step, Base::wait_pingpong, Base::warp_row;
  using typename Base::Held, typename Base::Keys, typename Base::Logits, typename Base::Notes,
      typename Base::Order, typename Base::Output, typename Base::Rings, typename Base::Scores,
      typename Base::Store, typename Base::Weights, typename Base::WorkTile;
  using Args = Sm90BlocksForwardArgs;
  using List = TileList<kBlockK>;
  using Walk =
      RecomputeQueue<Notes, kConfig.static_max(), ListedTileScheduler<kConfig.static_max()>>;
  static_assert(kConfig.blocks && !kConfig.varlen && !Base::kPaired && !Base::kSplitKv &&
                Base::kPacked == 1 && kBlockK % 32 == 0);

  // A tile that a list has, as the copying thread tells the others of it beside k.
  struct Step {
    int tile, bitmap, column;  // the bitmap's column of its first key
    bool more;

    static DFA_DEVICE unsigned place(const Rings& rings) {
      return rings.smem + kListedStepsAt + rings.k.stage * kListedStepBytes;
    }
    static DFA_DEVICE void tell(const Rings& rings, const ListedTile& listed, bool more) {
      const unsigned to = place(rings);
      ptx::store_shared(to, static_cast<unsigned>(listed.tile));
      ptx::store_shared(to + 4, static_cast<unsigned>(listed.bitmap));
      ptx::store_shared(to + 8, static_cast<unsigned>(listed.part * kBlockK));
      ptx::store_shared(to + 12, more);
    }
    // The lane that gives the stage back reads for its warp.
    static DFA_DEVICE Step told(const Rings& rings) {
      uint4 words{};
      if (lane() == 0) words = ptx::load_words_4(place(rings));
      const auto all = [](unsigned word) {
        return static_cast<int>(__shfl_sync(ptx::kWholeWarp, word, 0));
      };
      return {all(words.x), all(words.y), all(words.z), all(words.w) != 0};
    }
  };

  // The copying thread. The last tile of those before `step` that is there.
  static DFA_DEVICE ListedTile tile_before(const List& list, int& step) {
#pragma unroll 1
    while (--step >= 0) {
      const ListedTile listed = list.at(step);
      if (listed.tile >= 0) return listed;
    }
    return {-1, kFullBlock, 0};
  }

  static DFA_DEVICE WorkTile work_tile_of(const KernelArgs& args, const Walk& walk) {
    const int head = walk.head(), of_batch = head % args.hq;
    return {
        {head / args.hq}, of_batch, of_batch / (args.hq / args.hk), walk.tile() * kConfig.block_q};
  }

  static DFA_DEVICE void load_k(const Args& a, const WorkTile& work, const ListedTile& listed,
                                bool more, Rings& rings) {
    rings.k.wait_empty();
    Step::tell(rings, listed, more);
    Keys::load_k(a, work, listed.tile, rings);
  }

  static DFA_DEVICE void copy(const Args& a, Rings rings) {
    for (Walk walk({a.order, rings.smem + kNotedAt}, {rings.notes(), rings}); walk.more();
         walk.next()) {
      const WorkTile work = work_tile_of(a.args, walk);
      const TileRange seen =
          key_tiles(TileMask::of(a.args, work.seq), work.row, kConfig.block_q, kBlockK);
      const List list = key_list<kBlockK>(a.blocks, work.seq.batch, work.head, work.row, seen);
      int step = list.steps();
      ListedTile listed = tile_before(list, step), next = tile_before(list, step);
      const bool any = listed.tile >= 0;
      // Keys first where they need not wait for q's only stage.
      const bool keys_first = kQStages == 1 && any;
      if (keys_first) load_k(a, work, listed, next.tile >= 0, rings);
      rings.q.wait_empty();
      Order{walk.place(), walk.again(), work.seq, work.head, work.row, {0, any ? 1 : 0}}.tell(
          rings.order());
      walk.park();
      load_q(a, work, rings.q);
      rings.q.next();
      int last = -1;  // whose v is to come
#pragma unroll 1
      while (listed.tile >= 0) {
        if (!(keys_first && last < 0)) load_k(a, work, listed, next.tile >= 0, rings);
        if (last >= 0) Keys::load_v(a, work, last, rings);
        last = listed.tile;
        listed = next;
        next = tile_before(list, step);
      }
      if (last >= 0) Keys::load_v(a, work, last, rings);
      walk.unpark();
    }
    send(rings, Order::kOver);
  }

  // Bits of a warp's rows and a tile's keys, of the two rows of a thread, shifted so that a
  // fragment's two columns come first.
  using Bits = unsigned[2][kBlockK / 32];

  static DFA_DEVICE void load_bits(Bits& bits, const BlockArgs& blocks, const Step& step, int row) {
    if (step.bitmap == kFullBlock) return;
    const int first = row % blocks.block_q + warp_row() + static_cast<int>(lane() / 4);
    const unsigned* words =
        blocks.bits_of(step.bitmap) + first * blocks.row_words + step.column / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kBlockK / 32; ++i) bits[half][i] = words[half * 8 * blocks.row_words + i];
    }
  }

  static DFA_DEVICE void hide_unset(Scores& scores, const Bits& bits, const Step& step) {
    if (step.bitmap == kFullBlock) return;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned word = bits[i / 2][n / 4] >> lane() % 4 * 2;
        if ((word >> (n % 4 * 8 + i % 2) & 1u) == 0) scores[n][i] = -ptx::infinity();
      }
    }
  }

  // A warpgroup with queries: the recurrence.
  static DFA_DEVICE void compute(const Args& a, Rings rings, int group) {
    const KernelArgs& args = a.args;
    LazyRescaleSoftmax softmax(Logits::magnitude_log2(args));
    bool stored = false;  // an output may be on its way out of the stage before
    if (group == kGroups - 1) pass_pingpong(group);
    for (;; rings.q.next()) {
      rings.q.wait_full();
      const Order order = Order::told(rings.order(), lane());
      if (order.place == Order::kOver) break;
      if (order.place == Order::kMeet) {
        meet(rings, stored);
        stored = false;
        continue;
      }
      const int row = order.row + group * kGroupRows;
      const TileRange plain = plain_keys(args, order.seq, row, args.scale_log2);
      const Logits logits(args, order.seq, order.head, row + warp_row());
      const unsigned q = rings.q.tile() + group * kQGroupBytes;
      Output output;
      Weights weights;
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) output[n][i] = 0;
      }
      softmax.start();
      float inverse[2], lse[2], sums;
      if (order.tiles.begin < order.tiles.end) {
        Scores scores;
        Bits bits;
        bool updates_max;
        Held held;
        hold(held, q);
        rings.k.wait_full();
        ptx::pin(scores);
        multiply_scores(scores, held, q, rings.k.tile());
        Step step = Step::told(rings);
        load_bits(bits, a.blocks, step, row);
        if (kQStages > 1 && stored) release_stored(rings.q, 1);
        ptx::wait_products<0>();
        ptx::pin(scores);
        rings.k.release(lane());
        rings.k.next();
        prepare(scores, args, logits, order.seq, plain, row, step.tile, args.scale_log2);
        hide_unset(scores, bits, step);
        if (kQStages == 1 && !step.more) rings.q.release(lane());
        first_softmax_step(softmax, scores, updates_max, order.again);
        bool moved = false, under_way = false;
#pragma unroll 1
        while (step.more) {
          end_values(output, weights, rings, under_way);
          under_way = true;
          round(weights, scores);
          if (moved) softmax.rescale(output);
          rings.k.wait_full();
          wait_pingpong(group);
          ptx::pin(scores);
          ptx::pin(output);
          ptx::pin(weights);
          multiply_scores(scores, held, q, rings.k.tile());
          rings.v.wait_full();
          ptx::fence_products();
          multiply_values(output, weights, rings.v.tile());
          pass_pingpong(group);
          step = Step::told(rings);
          load_bits(bits, a.blocks, step, row);
          ptx::wait_products<1>();
          ptx::pin(scores);
          rings.k.release(lane());
          rings.k.next();
          if (kQStages == 1 && !step.more) rings.q.release(lane());
          prepare(scores, args, logits, order.seq, plain, row, step.tile, args.scale_log2);
          hide_unset(scores, bits, step);
          moved = softmax_step(softmax, scores, updates_max, order.again);
        }
        end_values(output, weights, rings, under_way);
        if (moved) softmax.rescale(output);
        rings.v.wait_full();
        round(weights, scores);
        ptx::pin(output);
        ptx::pin(weights);
        ptx::fence_products();
        multiply_values(output, weights, rings.v.tile());
        sums = finish(softmax, args, order.head, row, -1, inverse, lse);
        end_values(output, weights, rings, true);
      } else {
        if (kQStages == 1) rings.q.release(lane());
        if (kQStages > 1 && stored) release_stored(rings.q, 1);
        sums = finish(softmax, args, order.head, row, -1, inverse, lse);
      }
      stored = true;
      ask_where_left_range(rings, order, row, sums, output);
      const typename Store::Rows rows{order.seq, order.head, order.row, group, row + warp_row()};
      Store::lse(args, rows, lse);
      Store::output(a, rows, q, rings.smem + kOutputAt, output, inverse);
    }
    ptx::wait_stores_read();
    if (group == 0) wait_pingpong(group);
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_blocks_forward(const __grid_constant__ Sm90BlocksForwardArgs a) {
  run_sm90_forward<Sm90BlocksForward<kConfig>>(a);
}

}  // namespace dfa
