#pragma once

#include "kernels/either.h"
#include "kernels/forward/sm90_args.h"
#include "kernels/forward/sm90_order.cuh"
#include "kernels/forward/sm90_store.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/pipeline.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/schedule/recompute_notes.cuh"
#include "kernels/schedule/recompute_queue.h"
#include "kernels/schedule/split_kv_scheduler.h"
#include "kernels/schedule/tile_scheduler.h"
#include "kernels/schedule/varlen_scheduler.cuh"
#include "kernels/softmax/lazy_rescale_softmax.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/panel_rows.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/variant/exponent_logits.cuh"
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
// `num_splits` the work tiles behind the last whole round are dealt out in pieces, which
// combine_splits joins. Logits that are not plain are made of a tile's scores before its mask
// (ExponentLogits); a sink is added when a row is done. Limits: d, dv up to 256; strides in
// multiples of 16 bytes.
namespace dfa {

template <ForwardConfig kConfig>
struct Sm90Forward {
  static constexpr ForwardConfig config() { return kConfig; }
  static constexpr DType kElement = kConfig.element;
  static constexpr int kBlockK = kConfig.block_k;
  static constexpr int kGroups = kConfig.block_q / kGroupRows;  // warpgroups with queries
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQStages = kConfig.q_stages;
  static constexpr int kDims = kConfig.head_dim / 16;  // steps of a product
  static constexpr int kHeld = kConfig.q_columns_in_regs / 16;
  static constexpr int kSteps = kBlockK / 16;
  static constexpr int kKeys = kBlockK / 8;  // fragments
  static constexpr int kValues = kConfig.value_dim / 8;
  static constexpr int kArrivals = 4 * kGroups;  // one lane of every warp
  static constexpr bool kPaired = kConfig.cluster == 2;
  static constexpr int kPacked = kConfig.pack_gqa;
  static constexpr int kQueryRows = kConfig.query_rows();
  static constexpr bool kSplitKv = kConfig.num_splits > 0;
  static constexpr bool kVarlen = kConfig.varlen;
  using Seqlen = SeqlenInfo<kVarlen>;
  using Order = TileOrder<kVarlen>;
  using Logits = ExponentLogits<kConfig>;

  // Shared memory: q (a group's part after the other's), k, v, barriers.
  static constexpr int kQGroupBytes = kConfig.q_group_bytes();
  static constexpr int kQBytes = kGroups * kQGroupBytes;
  static constexpr int kKBytes = kConfig.k_tile_bytes();
  static constexpr int kVBytes = kConfig.v_tile_bytes();
  static constexpr int kKAt = kQStages * kQBytes;
  static constexpr int kVAt = kKAt + kStages * kKBytes;
  static constexpr int kOutputAt = kVAt + kStages * kVBytes;
  static constexpr int kBarriersAt = kOutputAt + kConfig.output_bytes();
  static constexpr int kOrdersAt = kBarriersAt + 16 * (kQStages + 2 * kStages);
  static constexpr int kNotesAt = kOrdersAt + kQStages * kConfig.order_bytes();
  static constexpr int kNotedAt =
      kNotesAt + kRecomputeBytes;  // of packed sequences: which work tiles
  static constexpr int kEnd =
      kNotesAt + (kConfig.static_max() ? kRecomputeBytes + kConfig.noted_bytes() : 0);
  static_assert(kEnd == kConfig.smem_bytes());

  using QRing = Pipeline<kQStages, kArrivals>;
  using Ring = Pipeline<kStages, kArrivals, kPaired>;
  struct Rings {
    unsigned smem;
    QRing q;
    Ring k, v;

    DFA_DEVICE unsigned order() const { return smem + kOrdersAt + q.stage * kConfig.order_bytes(); }
    DFA_DEVICE RecomputeNotes notes() const { return RecomputeNotes(smem + kNotesAt); }
  };

  static DFA_DEVICE Rings rings(unsigned smem) {
    const unsigned barriers = smem + kBarriersAt;
    return {smem,
            {smem, barriers, kQBytes},
            {smem + kKAt, barriers + 16 * kQStages, kKBytes},
            {smem + kVAt, barriers + 16 * (kQStages + kStages), kVBytes}};
  }

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
    return key_tiles(TileMask::of(a.args, seq), query, kGroupRows / kQueryRows, kBlockK);
  }

  // The copying thread.

  // With a ring of its own, so that it can send word.
  struct Notes : RecomputeNotes {
    Rings& rings;

    DFA_DEVICE void meet(int time) const {
      send(rings, Order::kMeet);
      const unsigned parity = static_cast<unsigned>(time) & 1;
      if constexpr (kPaired) {
        ptx::wait_for_pair(meeting(), parity);
      } else {
        ptx::wait(meeting(), parity);
      }
    }
  };
  using BlockWalk = Either<kVarlen, VarlenTileScheduler<kConfig.static_max()>,
                           Either<kSplitKv, SplitKvTileScheduler, PersistentTileScheduler>>;
  using Walk = RecomputeQueue<Notes, kConfig.static_max(), BlockWalk>;

  static DFA_DEVICE BlockWalk scheduler(const Sm90ForwardArgs& a, const Rings& rings) {
    const int block = static_cast<int>(blockIdx.x) / kConfig.cluster;
    const int blocks = static_cast<int>(gridDim.x) / kConfig.cluster;
    if constexpr (kVarlen) {
      return BlockWalk(a.args.packed, a.args.hq, rings.smem + kNotedAt);
    } else if constexpr (kSplitKv) {
      const SplitKv splits{a.partials.work_tiles, kConfig.num_splits};
      return BlockWalk(splits, a.partials.of_head, a.tile_grid, block, blocks);
    } else {
      return BlockWalk(a.tile_grid, block, blocks);
    }
  }

  static DFA_DEVICE void send(Rings& rings, int word) {
    rings.q.wait_empty();
    Order::tell(rings.order(), word);
    ptx::arrive(rings.q.full());
    rings.q.next();
  }

  struct WorkTile {
    Seqlen seq;
    int head, kv_head, row;  // a head of `kPacked`
  };
  static DFA_DEVICE WorkTile work_tile_of(const KernelArgs& args, const Walk& walk) {
    const int head = walk.head(), heads = args.hq / kPacked;
    if constexpr (kVarlen) {
      const SequenceTile& tile = walk.scheduler().sequence_tile();
      return {Seqlen::of(tile), head, head / (heads / args.hk),
              tile.tile * kConfig.work_tile_rows()};
    } else {
      return {{head / heads},
              head % heads,
              head % heads / (heads / args.hk),
              walk.tile() * kConfig.work_tile_rows()};
    }
  }

  static DFA_DEVICE void load_q(const Sm90ForwardArgs& a, const WorkTile& work, const QRing& ring) {
    constexpr int kPanels = panels(kElement, kConfig.head_dim);
    ptx::arrive_expecting(ring.full(), kGroups * kPanels * panel_bytes(kGroupRows));
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const RowOnMap at =
            row_on_map<kConfig>(a.args, work.seq, work.row + group * kGroupRows, work.head);
        ptx::load_box<kVarlen>(ring.tile() + group * kQGroupBytes + panel * panel_bytes(kGroupRows),
                               a.q, ring.full(), panel * panel_columns(kElement), at.second,
                               at.third, work.seq.q_box_batch());
      }
    }
  }

  // Of a pair each block copies every other panel for both, the first of k and the second of v or
  // the others.
  template <int kColumns, int kRows = kBlockK>
  static DFA_DEVICE void load_panels(const TensorMap& map, const WorkTile& work, int row,
                                     Ring& ring, unsigned half) {
    constexpr int kPanels = panels(kElement, kColumns);
    const int batch = work.seq.k_box_batch();
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), kPanels * panel_bytes(kRows));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned to = ring.tile() + panel * panel_bytes(kRows);
      const int column = panel * panel_columns(kElement);
      if constexpr (kPaired) {
        if (panel % 2 != static_cast<int>(half)) continue;
        ptx::load_box_of_pair<kVarlen>(to, map, ring.full(), column, row, work.kv_head, batch);
      } else {
        ptx::load_box<kVarlen>(to, map, ring.full(), column, row, work.kv_head, batch);
      }
    }
    ring.next();
  }
  static DFA_DEVICE void load_k(const Sm90ForwardArgs& a, const WorkTile& work, int tile,
                                Ring& ring) {
    load_panels<kConfig.head_dim>(a.k, work, work.seq.k_box_row(a.args, tile * kBlockK), ring,
                                  kPaired ? ptx::cluster_rank() % 2 : 0);
  }
  static DFA_DEVICE void load_v(const Sm90ForwardArgs& a, const WorkTile& work, int tile,
                                Ring& ring) {
    const unsigned half = kPaired ? 1 - ptx::cluster_rank() % 2 : 0;
    if constexpr (kElement == DType::e4m3) {  // of v as pack_values leaves it
      load_panels<kBlockK, kConfig.value_dim>(a.v, work, tile * kConfig.value_dim, ring, half);
    } else {
      load_panels<kConfig.value_dim>(a.v, work, work.seq.k_box_row(a.args, tile * kBlockK), ring,
                                     half);
    }
  }

  static DFA_DEVICE void copy(const Sm90ForwardArgs& a, Rings rings) {
    for (Walk walk(scheduler(a, rings), {rings.notes(), rings}); walk.more(); walk.next()) {
      WorkTile work = work_tile_of(a.args, walk);
      TileRange tiles = key_tiles(TileMask::of(a.args, work.seq), work.row / kQueryRows,
                                  kConfig.work_tile_queries(), kBlockK);
      if constexpr (kSplitKv) tiles = walk.scheduler().tiles_of_piece(tiles);
      if constexpr (kPaired) {
        work.row += static_cast<int>(ptx::cluster_rank() % 2) * kConfig.block_q;
      }
      // Keys first where they need not wait for q's only stage.
      const bool keys_first = kQStages == 1 && tiles.end > tiles.begin;
      if (keys_first) load_k(a, work, tiles.end - 1, rings.k);
      rings.q.wait_empty();
      if constexpr (kSplitKv) Order::tell_piece(rings.order(), walk.scheduler().piece());
      Order{walk.place(), walk.again(), work.seq, work.head, work.row, tiles}.tell(rings.order());
      walk.park();
      load_q(a, work, rings.q);
      rings.q.next();
#pragma unroll 1
      for (int tile = tiles.end - 1; tile >= tiles.begin; --tile) {
        const bool last = tile == tiles.end - 1;
        if (!(keys_first && last)) load_k(a, work, tile, rings.k);
        if (!last) load_v(a, work, tile + 1, rings.v);
      }
      if (tiles.end > tiles.begin) load_v(a, work, tiles.begin, rings.v);
      walk.unpark();
    }
    send(rings, Order::kOver);
  }

  // A warpgroup with queries.

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

  // Are scores to be negated?
  static DFA_DEVICE bool negates(float scale) { return Logits::kPlain && scale < 0; }

  // Keys whose scores are used as they come: all of the group's queries see them. Under a negative
  // scale there are none.
  static DFA_DEVICE TileRange plain_keys(const KernelArgs& args, const Seqlen& seq, int row,
                                         float scale) {
    if (negates(scale)) return {0, 0};
    return seen_by_all(TileMask::of(args, seq), row / kQueryRows, kGroupRows / kQueryRows);
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
    const TileMask mask = TileMask::of(args, seq);
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
  static DFA_DEVICE bool weigh(LazyRescaleSoftmax& softmax, Scores& scores, bool& follows,
                               bool always) {
    bool moved = false;
    if constexpr (!kConfig.static_max()) {
      moved = softmax.follow(scores);
    } else if (follows) [[unlikely]] {
      moved = softmax.follow(scores);
      follows = always || softmax.open();
    }
    softmax.weigh(scores);
    return moved;
  }

  // The same of a work tile's first tile. For a reference that stays the keys in front will do.
  static DFA_DEVICE void weigh_first(LazyRescaleSoftmax& softmax, Scores& scores, bool& follows,
                                     bool always) {
    constexpr int kInFront = 4;
    follows = always;
    if (kConfig.static_max() && !always) {
      softmax.begin(reinterpret_cast<const float(&)[kInFront][4]>(scores));
      follows = softmax.open();
    }
    weigh(softmax, scores, follows, always);
  }

  static DFA_DEVICE void compute(const Sm90ForwardArgs& a, Rings rings, int group) {
    const KernelArgs& args = a.args;
    LazyRescaleSoftmax softmax(Logits::magnitude_log2(args));
    bool stored = false;  // an output may be on its way out of the stage before
    if (group == kGroups - 1) pass_pingpong(group);
    for (;; rings.q.next()) {
      rings.q.wait_full();
      const Order order = Order::told(rings.order(), lane());
      if (order.place == Order::kOver) break;
      if (order.place == Order::kMeet) {
        if (kQStages > 1 && stored) release_stored(rings.q, 1);
        stored = false;
        rings.q.release(lane());
        arrive_at_meeting(rings);
        continue;
      }
      const int piece = kSplitKv ? Order::told_piece(rings.order()) : -1;
      const int row = order.row + group * kGroupRows;
      TileRange tiles = own_tiles(a, order.seq, row),
                plain = plain_keys(args, order.seq, row, args.scale_log2);
      if constexpr (kSplitKv) tiles = common(tiles, order.tiles);
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
      if (tiles.begin < tiles.end) {
        let_pass(rings, order.tiles.end - tiles.end, order.tiles.end, group);
        Scores scores;
        bool follows;
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
        if (kQStages == 1 && tiles.begin + 1 == tiles.end) rings.q.release(lane());
        weigh_first(softmax, scores, follows, order.again);
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
          moved = weigh(softmax, scores, follows, order.again);
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
      if constexpr (kConfig.static_max()) {
        if (!order.again && Store::left_range(row, sums, output)) {
          ask(rings, order.place);
        }
        if (order.again) ptx::wait_stores_written();
      }
      const typename Store::Rows rows{order.seq, order.head, order.row, group, row + warp_row()};
      if (kSplitKv && piece >= 0) {
        Store::piece(a, rows, piece, output, inverse, lse);
        continue;
      }
      Store::lse(args, rows, lse);
      if constexpr (kConfig.own_output()) {
        Store::by_halves(a, rows, rings.smem + kOutputAt, output, inverse);
      } else if constexpr (kQStages == 1 || kPacked != kQueryRows) {
        Store::straight(args, rows, output, inverse);
      } else {
        Store::through_q(a, rows, q, output, inverse);
      }
    }
    ptx::wait_stores_read();
    if (group == 0) wait_pingpong(group);
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

// Every thread of a block takes its part.
template <typename Kernel, typename Args>
DFA_DEVICE void run_sm90_forward(const Args& a) {
  constexpr ForwardConfig kConfig = Kernel::config();
  extern __shared__ __align__(1024) char smem[];
  const auto rings = Kernel::rings(ptx::shared_address(smem));
  if (threadIdx.x == 0) {
    rings.q.init();
    rings.k.init();
    rings.v.init();
    if constexpr (kConfig.static_max()) {
      ptx::init_barrier(rings.notes().meeting(), Kernel::kArrivals * kConfig.cluster);
    }
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
    if (threadIdx.x < 32 && ptx::elect()) {
      ptx::prefetch(a.q);
      ptx::prefetch(a.k);
      ptx::prefetch(a.v);
      ptx::prefetch(a.o);
      Kernel::copy(a, rings);
    }
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
