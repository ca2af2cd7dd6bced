#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/forward/sm90_forward_consumer.cuh"
#include "kernels/forward/sm90_forward_producer.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/split_kv.h"
#include "kernels/softmax/lazy_rescale_softmax.cuh"
#include "spec/forward_config.h"

// FlashAttention forward for sm_90a (wgmma, the copy engine), in fp16 and bf16.
//
// A thread block stays on its multiprocessor and works through query tiles. Its first warpgroup has
// one thread that starts copies; each other warpgroup owns 64 queries of the tile. Life of tile i
// of k and v, walked from the last key that is seen down to the first:
//   copies start    when the stage that tile i - stages has left is empty
//   scores          product with q in step i, beside the weights of tile i + 1 times its v
//   weights         while that second product runs; with `pingpong` while other warpgroups' do
//   output          weights times v in step i - 1
// The output leaves through the place of q, or where there is one, through a place of its own or
// straight. In bf16 a work tile whose weights left the range of fp32 is done again, with maxima
// that are followed (`static_max`). With `cluster` = 2 neighbouring blocks own neighbouring tiles
// of q and copy k and v together, half of each for both: they walk the keys that either sees, a
// stage is empty when both have left it, and what one asks to have done again both do again. The
// first `q_columns_in_regs` of q stay in registers: scores take them as left operands from there.
// With `pack_gqa` neighbouring rows are heads of one query, which read the same keys; where they
// are no power of two, rows that are left hold heads of another group, or nothing. With
// `num_splits` the work tiles behind the last whole round are dealt out in splits, which
// combine_splits combines. Logits that are not plain are made of a tile's scores before its mask
// (ExponentLogits), biases copied a tile ahead by each warp; a sink is added when a row is done.
// Limits: d, dv up to 256; strides in multiples of 16 bytes.
//
// sm90_forward_block.cuh is what all threads know, sm90_forward_producer.cuh the thread that starts
// copies, sm90_forward_consumer.cuh the steps of a warpgroup with queries, sm90_store.cuh how its
// output leaves; here are the recurrence and the kernel.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90Forward : Sm90ForwardProducer<kConfig>, Sm90ForwardConsumer<kConfig> {
  using Consumer = Sm90ForwardConsumer<kConfig>;
  using Consumer::ask_where_left_range, Consumer::drop, Consumer::end_values, Consumer::finish,
      Consumer::forget_left_rows, Consumer::hold, Consumer::kBlockK, Consumer::kGroups,
      Consumer::kOutputAt, Consumer::kPacked, Consumer::kQGroupBytes, Consumer::kQStages,
      Consumer::kQueryRows, Consumer::kSplitKv, Consumer::kValues, Consumer::lane,
      Consumer::let_pass, Consumer::logits_of, Consumer::meet, Consumer::multiply_scores,
      Consumer::multiply_values, Consumer::own_tiles, Consumer::pass_pingpong, Consumer::plain_keys,
      Consumer::prepare, Consumer::release_stored, Consumer::round, Consumer::wait_pingpong,
      Consumer::warp_row, Consumer::softmax_step, Consumer::first_softmax_step;
  using typename Consumer::Dropout, typename Consumer::Held, typename Consumer::Logits,
      typename Consumer::Order, typename Consumer::Output, typename Consumer::Rings,
      typename Consumer::Scores, typename Consumer::Store, typename Consumer::Weights;

  // A warpgroup with queries: the recurrence.
  static DFA_DEVICE void compute(const Sm90ForwardArgs& a, Rings rings, int group) {
    const KernelArgs& args = a.args;
    LazyRescaleSoftmax softmax(Logits::magnitude_log2(args));
    const Dropout all_heads(args, 0);
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
      const int piece = kSplitKv ? Order::told_piece(rings.order()) : -1;
      const int row = order.row + group * kGroupRows;
      TileRange tiles = own_tiles(a, order.seq, row),
                plain = plain_keys(args, order.seq, row, args.scale_log2);
      if constexpr (kSplitKv) tiles = common(tiles, order.tiles);
      const Logits logits = logits_of(args, rings, order, row, group);
      const Dropout dropout = all_heads.of_head(order.seq.batch * args.hq + order.head);
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
      if (tiles.begin < tiles.end) {
        logits.fetch(args, (tiles.end - 1) * kBlockK);
        let_pass(rings, order.tiles.end - tiles.end, order.tiles.end, group);
        Scores scores;
        bool updates_max;
        Held held;
        hold(held, q);
        rings.k.wait_full();
        ptx::pin(scores);
        multiply_scores(scores, held, q, rings.k.tile());
        if (kQStages > 1 && stored) release_stored(rings.q, 1);
        ptx::wait_products<0>();
        ptx::pin(scores);
        rings.k.release(lane());
        rings.k.next();
        prepare(scores, args, logits, order.seq, plain, row, tiles.end - 1, args.scale_log2);
        if (tiles.begin + 1 < tiles.end) logits.fetch(args, (tiles.end - 2) * kBlockK);
        if (kQStages == 1 && tiles.begin + 1 == tiles.end) rings.q.release(lane());
        first_softmax_step(softmax, scores, updates_max, order.again);
        drop(scores, args, dropout, row, tiles.end - 1);
        bool moved = false, under_way = false;
#pragma unroll 1
        for (int tile = tiles.end - 2; tile >= tiles.begin; --tile) {
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
          ptx::wait_products<1>();
          ptx::pin(scores);
          rings.k.release(lane());
          rings.k.next();
          if (kQStages == 1 && tile == tiles.begin) rings.q.release(lane());
          prepare(scores, args, logits, order.seq, plain, row, tile, args.scale_log2);
          if (tile > tiles.begin) logits.fetch(args, (tile - 1) * kBlockK);
          moved = softmax_step(softmax, scores, updates_max, order.again);
          drop(scores, args, dropout, row, tile);
        }
        end_values(output, weights, rings, under_way);
        if (moved) softmax.rescale(output);
        rings.v.wait_full();
        round(weights, scores);
        ptx::pin(output);
        ptx::pin(weights);
        ptx::fence_products();
        multiply_values(output, weights, rings.v.tile());
        forget_left_rows(softmax, row);
        sums = finish(softmax, args, order.head, row, piece, inverse, lse);
        end_values(output, weights, rings, true);
        let_pass(rings, tiles.begin - order.tiles.begin, tiles.begin, group);
      } else {
        if (kQStages == 1) rings.q.release(lane());
        if (kQStages > 1 && stored) release_stored(rings.q, 1);
        sums = finish(softmax, args, order.head, row, piece, inverse, lse);
        const int all = order.tiles.end - order.tiles.begin;
        let_pass(rings, all, all - 1, group);
      }
      stored = true;
      ask_where_left_range(rings, order, row, sums, output);
      Dropout::scale(args, inverse);
      const typename Store::Rows rows{order.seq, order.head, order.row, group, row + warp_row()};
      if (kSplitKv && piece >= 0) {
        Store::piece(a, rows, piece, output, inverse, lse);
        continue;
      }
      Store::lse(args, rows, lse);
      Store::output(a, rows, q, rings.smem + kOutputAt, output, inverse);
    }
    ptx::wait_stores_read();
    if (group == 0) wait_pingpong(group);
  }
};

// Every thread of a block takes its part.
template <typename Kernel, typename Args>
DFA_DEVICE void run_sm90_forward(const Args& a) {
  constexpr ForwardConfig kConfig = Kernel::config();
  extern __shared__ __align__(1024) char smem[];
  const auto rings = Kernel::rings(ptx::shared_address(smem));
  if (threadIdx.x == 0) {
    rings.init();
    if constexpr (kConfig.static_max()) {
      ptx::init_barrier(rings.notes().meeting(), Kernel::kArrivals * kConfig.cluster);
    }
    if constexpr (Kernel::kHelped) Kernel::init_issuers(a, rings);
    if constexpr (Kernel::kTransposed) rings.init_raw();
    ptx::fence_barrier_init();
  }
  if constexpr (Kernel::kPaired) {
    ptx::sync_cluster();
  } else {
    __syncthreads();
  }
  ptx::griddepcontrol_wait();
  const int group = __shfl_sync(ptx::kWholeWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<kConfig.copier_registers()>();
    if constexpr (Kernel::kTransposed) {
      // They return: behind a place where threads meet again the producer has no uniform registers.
      if (threadIdx.x >= 32) return Kernel::transpose_values(rings);
    }
    if (threadIdx.x < 32 && ptx::elect()) {
      ptx::prefetch(a.q);
      ptx::prefetch(a.k);
      ptx::prefetch(a.v);
      ptx::prefetch(a.o);
      Kernel::copy(a, rings);
    }
    if constexpr (Kernel::kHelped) Kernel::issue(a, rings, static_cast<int>(threadIdx.x) / 32);
  } else {
    ptx::setmaxnreg_inc<kConfig.query_registers()>();
    Kernel::compute(a, rings, group - 1);
  }
  // Neither ends while the other may still arrive at its barriers.
  if constexpr (Kernel::kPaired) ptx::sync_cluster();
}

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    sm90_forward(const __grid_constant__ Sm90ForwardArgs a) {
  run_sm90_forward<Sm90Forward<kConfig>>(a);
}

}  // namespace dfa
