#pragma once

#include "kernels/backward/sm90_args.h"
#include "kernels/backward/sm90_dq.cuh"
#include "kernels/backward/sm90_dq_postprocess.cuh"
#include "kernels/backward/sm90_dq_semaphore.cuh"
#include "kernels/backward/sm90_semaphore_releaser.cuh"
#include "kernels/backward/sm90_split_q.cuh"
#include "kernels/backward/sm90_warpgroup.cuh"
#include "kernels/backward/sm90_wide_dq_rounding.cuh"
#include "kernels/either.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/schedule/dynamic_scheduler.cuh"
#include "kernels/schedule/key_work_tile.cuh"
#include "kernels/schedule/pipeline.cuh"
#include "kernels/schedule/query_walk.cuh"
#include "kernels/tile/panel.h"

// What Hopper's backward kernels share: a thread block that owns keys of one key head and walks
// the queries that see them. Here are its shared memory, the warp that starts copies, the thread
// that serves the dq semaphore, and single steps of a warpgroup; who does which is in
// sm90_backward.cuh and sm90_pair_backward.cuh (d and dv up to 128) and sm90_wide_backward.cuh.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Keys : Sm90Warpgroup<kConfig> {
  using Warpgroup = Sm90Warpgroup<kConfig>;
  using typename Warpgroup::Factor;
  using typename Warpgroup::WorkTile;
  using Warpgroup::kBlockK;
  using Warpgroup::kBlockQ;
  using Warpgroup::kElement;
  using Warpgroup::kHalf;
  using Warpgroup::store_gradient;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kThreads = 32 * kConfig.warps;  // that compute
  static constexpr int kHalves = kBlockQ / kHalf;
  static constexpr int kKeyColumns = kSm90KeyColumns<kConfig>;
  static constexpr int kDims = kConfig.head_dim / 8;  // fragments; likewise below
  static constexpr int kValues = kConfig.value_dim / 8;
  // Registers of the first warpgroup, and of one that computes: no more than a block starts with,
  // or who asks for more would wait for ever.
  static constexpr int kGiven = 24;
  static constexpr int kTaken = 240;
  static constexpr int kAtStart = 65536 / kConfig.threads() / 8 * 8;
  static_assert(kGroupThreads * kGiven + kThreads * kTaken <= kConfig.threads() * kAtStart);
  static constexpr bool kPaired = kConfig.cluster == 2;
  static constexpr bool kWide = kConfig.sm90_is_wide();
  using Dq = Sm90Dq<kConfig>;
  using Zeros = Sm90DqZeros<kConfig>;

  // Shared memory: k, v, stages of q, of do, what warpgroups tell each other (pairs of blocks: and
  // the other's k), stages of lse and delta, barriers.
  static constexpr int kVAt = tile_bytes(kBlockK, kConfig.head_dim);
  static constexpr int kQAt = kVAt + tile_bytes(kBlockK, kConfig.value_dim);
  static constexpr int kQBytes = tile_bytes(kBlockQ, kConfig.head_dim);
  static constexpr int kDoAt = kQAt + kStages * kQBytes;
  static constexpr int kDoBytes = tile_bytes(kBlockQ, kConfig.value_dim);
  static constexpr int kDoStages = kConfig.do_stages();
  static constexpr int kDsAt = kDoAt + kDoStages * kDoBytes;
  static constexpr int kDsBytes = tile_bytes(kBlockK, kBlockQ);
  static constexpr int kOthersKBytes = tile_bytes(kBlockK, kConfig.others_columns());
  static constexpr int kOthersKAt =  // of pairs
      kDsAt + kConfig.sm90_exchange_bytes() - kOthersKBytes;
  static constexpr int kDrawsAt =  // with dropout
      kOthersKAt + (kPaired ? 0 : kOthersKBytes) - kConfig.sm90_draw_bytes();
  static constexpr int kRowBytes = 4 * kBlockQ;
  static constexpr int kLseAt = kDsAt + kConfig.sm90_exchange_bytes();
  static constexpr int kDeltaAt = kLseAt + kStages * kRowBytes;
  static constexpr int kBarriersAt = kDeltaAt + kStages * kRowBytes;
  static constexpr int kBarriers = kConfig.sm90_barriers();
  static constexpr int kRingBarriers = kStages * kConfig.cluster;  // of one of both rings
  static constexpr int kQueueAt = kBarriersAt + 8 * (kBarriers + 2 * kRingBarriers);
  static constexpr int kQueueEnd = kQueueAt + kConfig.sm90_queue_bytes();
  static constexpr int kRoundingAt = (kQueueEnd + 15) / 16 * 16;  // for the copy engine
  static_assert(kQueueEnd + kConfig.sm90_rounding_bytes() == kConfig.smem_bytes());

  // Named barriers: 0 of the block, 1 of all who compute, then those of the rings. A pair's rings
  // are filled for both, and given back to both.
  template <int kCount>
  using RingOf =
      Either<kPaired, Pipeline<kCount, kConfig.warps, true>, SharedPipeline<kCount, kThreads>>;
  using Ring = RingOf<kStages>;
  using DoRing = RingOf<kDoStages>;

  // Where pairs of blocks stay and take one work tile after the other, they read which: all warps
  // that compute, the one that copies, a thread or two, and a warp that zeroes dq.
  static constexpr bool kPersistent = kConfig.persistent;
  static constexpr bool kPasses = kConfig.sm90_sends_ds();
  // Are sums as they come cleared and rounded in the same grid? Then a thread counts work tiles
  // that have ended.
  static constexpr bool kCounts = kConfig.dq_fused() && !Dq::kSerialized;
  static constexpr bool kParts = kConfig.split_q;
  using Queue =
      DynamicTileScheduler<kConfig.warps + 2 + (Dq::kSerialized || kPasses || kCounts) + kCounts,
                           kParts>;
  static_assert(!kPersistent ||
                (kPaired && kStages == 2 && kConfig.early_release() == Dq::kSerialized));
  static_assert(!kPersistent || kConfig.sm90_queue_bytes() == 24 + Queue::kBytes);

  struct Shared {
    unsigned base;
    Ring q;
    DoRing d_o;

    DFA_DEVICE unsigned barrier(int i) const { return base + kBarriersAt + 8 * i; }
    DFA_DEVICE unsigned k_full() const { return barrier(0); }
    DFA_DEVICE unsigned v_full() const { return barrier(1); }
    DFA_DEVICE unsigned acquired() const { return barrier(2); }  // this block may add
    DFA_DEVICE unsigned added() const { return barrier(3); }     // all warps have
    // Of wide pairs that round sums as they come, in place of acquired(): a share of them may be.
    DFA_DEVICE unsigned complete() const { return barrier(2); }
    // Who releases the semaphore has seen that.
    DFA_DEVICE unsigned seen() const { return barrier(kConfig.sm90_wide_pair() ? 8 : 4); }
    // Of pairs: both tiles of ds whose dq is made here are there, and have been read; those whose
    // dq is made there have been.
    DFA_DEVICE unsigned ds_there() const { return barrier(5); }
    DFA_DEVICE unsigned ds_read() const { return barrier(6); }
    DFA_DEVICE unsigned sent_read() const { return barrier(7); }
    // Of those, a warpgroup's rows of 64 queries are there to be sent.
    DFA_DEVICE unsigned ds_stored(int half, int group) const {
      return barrier(8 + 2 * half + group);
    }
    // Of wide pairs, of each of two places for the other's ds; the second has ds_read(), which is
    // not theirs.
    DFA_DEVICE unsigned ds_there(unsigned place) const { return barrier(5 - place); }
    DFA_DEVICE unsigned sent_read(unsigned place) const { return barrier(7 - place); }
    // Where pairs stay: the other's k is there; both have been read, or v has.
    DFA_DEVICE unsigned others_k_full() const { return base + kQueueAt; }
    DFA_DEVICE unsigned k_empty() const { return base + kQueueAt + 8; }
    DFA_DEVICE unsigned v_empty() const { return base + kQueueAt + 16; }
    DFA_DEVICE unsigned sequence() const { return base + kQueueAt; }  // of packed sequences
    DFA_DEVICE Queue queue(unsigned taken = 0) const { return {base + kQueueAt + 24, taken}; }
    // Both rings at the n-th tile, q's of two stages, where registers are few.
    DFA_DEVICE void place(unsigned n) {
      q.stage = d_o.stage = n % 2;
      q.phase = d_o.phase = n / 2 % 2;
      if constexpr (kDoStages == 1) {
        d_o.stage = 0;
        d_o.phase = n % 2;
      }
    }
    DFA_DEVICE unsigned lse() const { return base + kLseAt + q.stage * kRowBytes; }
    DFA_DEVICE unsigned delta() const { return base + kDeltaAt + d_o.stage * kRowBytes; }
  };

  static DFA_DEVICE Shared shared_of(unsigned base) {
    const unsigned rings = base + kBarriersAt + 8 * kBarriers;
    const unsigned second = rings + 8 * kRingBarriers;
    if constexpr (kPaired) {
      return {base, {base + kQAt, rings, kQBytes}, {base + kDoAt, second, kDoBytes}};
    } else {
      return {
          base, {base + kQAt, rings, 2, kQBytes}, {base + kDoAt, second, 2 + kStages, kDoBytes}};
    }
  }

  static DFA_DEVICE void init(const Shared& shared) {
    ptx::init_barrier(shared.k_full(), 1);
    ptx::init_barrier(shared.v_full(), kConfig.clears_packed() ? 2 : 1);
    ptx::init_barrier(shared.acquired(), 1);
    ptx::init_barrier(shared.added(), kConfig.warps);
    if constexpr (kConfig.early_release() || kCounts) ptx::init_barrier(shared.seen(), 1);
    if constexpr (kPaired) {
      constexpr unsigned kOfDs = kWide ? kGroupThreads / 32 : kConfig.warps;  // warps that make it
      ptx::init_barrier(shared.ds_there(), kOfDs);
      if constexpr (kWide) ptx::init_barrier(shared.ds_there(1), kOfDs);
      ptx::init_barrier(shared.ds_read(), kConfig.warps);
      ptx::init_barrier(shared.sent_read(), kConfig.warps);
    }
    if constexpr (kConfig.sm90_sends_ds()) {
      for (int part = 0; part < 2 * kHalves; ++part) {
        ptx::init_barrier(shared.ds_stored(0, part), kGroupThreads / 32);
      }
    }
    if constexpr (kPersistent) {
      ptx::init_barrier(shared.others_k_full(), 1);
      ptx::init_barrier(shared.k_empty(), kConfig.warps);
      ptx::init_barrier(shared.v_empty(), kConfig.warps);
      shared.queue().init();
    }
    if constexpr (kConfig.dq_fused() && !kWide) rounding_warp(shared.base).init();
    shared.q.init();
    shared.d_o.init();
    ptx::fence_barrier_init();
  }

  // A pair walks the queries that see the keys of either, and has the dq semaphore as one.
  static DFA_DEVICE WorkTile cluster_work_tile(const KernelArgs& args, const Shared& shared) {
    if constexpr (kConfig.varlen) {
      return told_work_tile(shared);
    } else {
      return key_work_tile<kConfig.cluster_keys(), true>(args,
                                                         ptx::block_index() / kConfig.cluster);
    }
  }
  // Of packed sequences a thread looks up the work for all: read once more from shared memory, it
  // takes no register from before a loop to behind it.
  static DFA_DEVICE void tell_work_tile(const KernelArgs& args, const Shared& shared) {
    if constexpr (!kConfig.varlen) return;
    const auto work =
        packed_key_work_tile<kConfig.cluster_keys()>(args, ptx::block_index() / kConfig.cluster);
    const int words[] = {work.seq.batch,   work.seq.q_rows, work.seq.k_rows, work.seq.q_begin,
                         work.seq.k_begin, work.head,       work.key};
#pragma unroll
    for (unsigned i = 0; i < 7; ++i) {
      ptx::store_shared(shared.sequence() + 4 * i, static_cast<unsigned>(words[i]));
    }
  }
  static DFA_DEVICE WorkTile told_work_tile(const Shared& shared) {
    const auto word = [&](unsigned i) {
      return static_cast<int>(ptx::load_shared(shared.sequence() + 4 * i));
    };
    return {{word(0), word(1), word(2), word(3), word(4)}, word(5), word(6)};
  }
  // Of packed sequences there are as many thread blocks as there could be work tiles.
  static DFA_DEVICE bool has_work_tile(const KernelArgs& args) {
    if constexpr (kConfig.varlen) {
      return has_packed_key_work_tile(args, ptx::block_index() / kConfig.cluster);
    } else {
      return true;
    }
  }
  static DFA_DEVICE int work_tiles(const KernelArgs& args) {
    return args.b * args.hk * ((args.sk + kConfig.cluster_keys() - 1) / kConfig.cluster_keys());
  }

  // What a thread of the first block of a pair does that stays, after n work tiles.
  static DFA_DEVICE void take_work_tile(const KernelArgs& args, const Shared& shared, unsigned n) {
    shared.queue(n).take(args, [&](unsigned taken) {
      const int i = static_cast<int>(taken);
      if (i >= (kParts ? args.parts.count(work_tiles(args)) : work_tiles(args)))
        return WorkTile{{-1}, 0, 0};
      const auto index = static_cast<unsigned>(kParts ? args.parts.work(i) : i);
      WorkTile work = key_work_tile<kConfig.cluster_keys(), true>(args, index);
      if constexpr (kParts) work.part = args.parts.part(i);
      return work;
    });
  }

  // Which a warp or, unless kWarp, a thread is told: body(cluster_work, how many were before), of
  // one work or, where pairs stay, of one after the other.
  template <bool kWarp, typename Body>
  static DFA_DEVICE void for_work_tiles(const KernelArgs& args, const Shared& shared,
                                        const Body& body) {
    if constexpr (!kPersistent) {
      body(cluster_work_tile(args, shared), 0u);
    } else {
      Queue queue = shared.queue();
      WorkTile work;
#pragma unroll 1
      while (queue.template next<kWarp>(work)) body(work, queue.n - 1);
    }
  }
  static DFA_DEVICE WorkTile again(const Shared& shared, const WorkTile& work) {
    if constexpr (kConfig.varlen) {
      return told_work_tile(shared);
    } else {
      return work;
    }
  }
  static DFA_DEVICE int rank() { return kPaired ? static_cast<int>(ptx::cluster_rank() % 2) : 0; }

  // The first key of a warpgroup, of the cluster's first. Under a mask the second block's lie
  // between the first one's: either has one warpgroup that sees more queries and one that sees
  // fewer, and where they skip, steps of the one alone are short for both blocks.
  static DFA_DEVICE int key_of(int key, int rank, int group) {
    if constexpr (kConfig.masked) return key + (rank ^ 3 * group) * kGroupRows;
    return key + rank * kBlockK + group * kGroupRows;
  }
  // This block's, as a warpgroup has its keys: as if those before lay right ahead of them.
  static DFA_DEVICE WorkTile own_work_tile(WorkTile of_cluster, int group = 0) {
    if constexpr (kPaired) of_cluster.key += key_of(0, rank(), group) - group * kGroupRows;
    return of_cluster;
  }
  static DFA_DEVICE WorkTile work_tile_of(const KernelArgs& args, const Shared& shared) {
    return own_work_tile(cluster_work_tile(args, shared));
  }

  // Where dq is rounded in the same grid, of all threads of a block: does it own no keys? Then it
  // has rounded dq at the end or, as the last group of heads may be a small one, has nothing to do.
  using Rounding = Either<kWide, Sm90WideDqRounding<kConfig>, Sm90DqRounding<kConfig>>;
  static DFA_DEVICE bool owns_none(const KernelArgs& args, unsigned smem) {
    const int cluster = Rounding::cluster_index(args);
    // Of parts more pairs may stay than there are work tiles.
    const int index = static_cast<int>(ptx::block_index()) / kConfig.cluster;
    if (kParts && index < args.persistent_clusters) return false;
    if (cluster >= args.rounding.owners()) {
      ptx::griddepcontrol_wait();
      typename Rounding::Block{smem}.round(args);
    }
    return cluster >= work_tiles(args);
  }
  static DFA_DEVICE typename Rounding::Warp rounding_warp(unsigned base) {
    return {base + kRoundingAt};
  }

  using Walk =
      QueryWalk<MaskOf<kConfig>, kConfig.cluster_keys(), kBlockQ, kParts, kConfig.gqa_inner_loop>;

  // Tiles to whose dq this block adds: of a pair that is not wide every second one, n having been
  // walked before.
  struct EverySecond : Walk {
    static DFA_DEVICE EverySecond of(const Walk& all, unsigned n) {
      EverySecond walk{all};
      if ((n + rank()) % 2 != 0) walk.Walk::next();
      return walk;
    }
    DFA_DEVICE void next() {
      Walk::next();
      Walk::next();
    }
  };
  using DqWalk = Either<kPaired && !kWide, EverySecond, Walk>;
  static DFA_DEVICE DqWalk dq_walk(const Walk& all, unsigned n) {
    if constexpr (kPaired && !kWide) {
      return EverySecond::of(all, n);
    } else {
      return all;
    }
  }

  // The copying warp.

  static DFA_DEVICE bool starts_copies() { return ptx::thread_index() % 32 == 0; }

  // A panel's columns from a multiple of kOfPanel on.
  template <int kRows, int kColumns, int kOfPanel = kPanelColumns>
  static DFA_DEVICE void load_tile(unsigned to, const TensorMap& map, unsigned barrier, int row,
                                   int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < panels(kColumns); ++panel) {
      ptx::load_box<kConfig.varlen>(to + panel * panel_bytes(kRows), map, barrier, panel * kOfPanel,
                                    row, head, batch);
    }
  }

  // Every second panel, for both blocks; kFirst: which the first of them starts with.
  template <int kColumns, int kFirst, typename AnyRing>
  static DFA_DEVICE void load_panels_of_pair(const AnyRing& ring, const TensorMap& map,
                                             const KernelArgs& args, const WorkTile& work,
                                             const Walk& walk) {
    for (int panel = (rank() + kFirst) % 2; panel < panels(kColumns); panel += 2) {
      ptx::load_box_of_pair<kConfig.varlen>(
          ring.tile() + panel * panel_bytes(kBlockQ), map, ring.full(), panel * kPanelColumns,
          work.seq.q_box_row(args, walk.tile * kBlockQ), walk.head, work.seq.q_box_batch());
    }
  }

  template <int kColumns, int kFirst = 0, typename AnyRing>
  static DFA_DEVICE void load_queries(const AnyRing& ring, const TensorMap& map, unsigned to_rows,
                                      const float* rows, const KernelArgs& args,
                                      const WorkTile& work, const Walk& walk) {
    // Of a pair the thread waits alone, as it may be a phase ahead of other lanes by then.
    if (kPaired && !starts_copies()) return;
    ring.wait_empty();
    if (!starts_copies()) return;
    ptx::arrive_expecting(ring.full(), tile_bytes(kBlockQ, kColumns) + kRowBytes);
    if constexpr (kPaired) {
      load_panels_of_pair<kColumns, kFirst>(ring, map, args, work, walk);
    } else {
      load_tile<kBlockQ, kColumns>(ring.tile(), map, ring.full(),
                                   work.seq.q_box_row(args, walk.tile * kBlockQ), walk.head,
                                   work.seq.q_box_batch());
    }
    ptx::load_bytes(to_rows, rows + work.seq.padded_offset(args, walk.head) + walk.tile * kBlockQ,
                    kRowBytes, ring.full());
  }

  // A tile of a block's keys, the first of which is `key`; rank: the block's.
  template <int kColumns, int kOfPanel>
  static DFA_DEVICE void load_keys_of(const KernelArgs& args, int rank, unsigned to,
                                      const TensorMap& map, unsigned barrier, const WorkTile& work,
                                      int key) {
    key = work.seq.k_box_row(args, key);
    if constexpr (!kConfig.masked) {
      load_tile<kBlockK, kColumns, kOfPanel>(to, map, barrier, key, work.head,
                                             work.seq.k_box_batch());
    } else {  // a box for each warpgroup
#pragma unroll
      for (int group = 0; group < kBlockK / kGroupRows; ++group) {
        const int row = key_of(key, rank, group) - key_of(0, rank, 0);
#pragma unroll
        for (int panel = 0; panel < panels(kColumns); ++panel) {
          ptx::load_box<kConfig.varlen>(
              to + panel * panel_bytes(kBlockK) + group * panel_bytes(kGroupRows), map, barrier,
              panel * kOfPanel, row, work.head, work.seq.k_box_batch());
        }
      }
    }
  }
  static DFA_DEVICE void load_k(const Sm90BackwardArgs& a, const Shared& shared, unsigned to,
                                unsigned barrier, const WorkTile& work) {
    load_keys_of<kConfig.head_dim, kKeyColumns>(a.args, rank(), shared.base + to, a.k, barrier,
                                                work, work.key);
  }
  static constexpr int kOthersPanels = panels(kConfig.others_columns());
  static DFA_DEVICE void load_others_k(const Sm90BackwardArgs& a, const Shared& shared,
                                       unsigned barrier, const WorkTile& work) {
    constexpr int kApart = kConfig.masked ? kGroupRows : kBlockK;  // of both blocks' first keys
    const int key = work.key + (rank() == 0 ? kApart : -kApart);
    if constexpr (kConfig.sm90_halves_dq()) {
#pragma unroll
      for (int panel = 0; panel < kOthersPanels; ++panel) {
        ptx::load_box<kConfig.varlen>(shared.base + kOthersKAt + panel * panel_bytes(kBlockK), a.k,
                                      barrier, (rank() * kOthersPanels + panel) * kPanelColumns,
                                      work.seq.k_box_row(a.args, key), work.head,
                                      work.seq.k_box_batch());
      }
    } else {
      load_keys_of<kConfig.head_dim, kKeyColumns>(a.args, 1 - rank(), shared.base + kOthersKAt, a.k,
                                                  barrier, work, key);
    }
  }
  static DFA_DEVICE void load_v(const Sm90BackwardArgs& a, const Shared& shared,
                                const WorkTile& work) {
    load_keys_of<kConfig.value_dim, kPanelColumns>(a.args, rank(), shared.base + kVAt, a.v,
                                                   shared.v_full(), work, work.key);
  }
  static constexpr int kKBytes = tile_bytes(kBlockK, kConfig.head_dim);
  static constexpr int kVBytes = tile_bytes(kBlockK, kConfig.value_dim);

  static DFA_DEVICE void load_keys(const Sm90BackwardArgs& a, const Shared& shared,
                                   const WorkTile& work) {
    if (!starts_copies()) return;
    ptx::arrive_expecting(shared.k_full(), kKBytes);
    load_k(a, shared, 0, shared.k_full(), work);
    ptx::arrive_expecting(shared.v_full(), kVBytes + (kPaired ? kOthersKBytes : 0));
    load_v(a, shared, work);
    if constexpr (kPaired) load_others_k(a, shared, shared.v_full(), work);
  }

  // Where pairs stay, by a thread: v when the last step of the work before has read it, which is
  // long before k has been.
  static DFA_DEVICE void load_next_keys(const Sm90BackwardArgs& a, const Shared& shared,
                                        const WorkTile& of_cluster, unsigned work_tiles_before) {
    const bool any = Walk::of(a.args, of_cluster).any();
    const WorkTile work = own_work_tile(of_cluster);
    ptx::wait(shared.v_empty(), work_tiles_before % 2 ^ 1);
    ptx::arrive_expecting(shared.v_full(), any ? kVBytes : 0);
    if (any) load_v(a, shared, work);
    ptx::wait(shared.k_empty(), work_tiles_before % 2 ^ 1);
    ptx::arrive_expecting(shared.k_full(), any ? kKBytes : 0);
    if (any) load_k(a, shared, 0, shared.k_full(), work);
    if constexpr (kCounts) Zeros::wait_for_tiles(a.args, work);  // who adds waits for what follows
    ptx::arrive_expecting(shared.others_k_full(), any ? kOthersKBytes : 0);
    if (any) load_others_k(a, shared, shared.others_k_full(), work);
  }

  static DFA_DEVICE void load_tiles(const Sm90BackwardArgs& a, const Shared& shared,
                                    const WorkTile& work, const Walk& walk) {
    load_queries<kConfig.head_dim>(shared.q, a.q, shared.lse(), a.args.lse_log2, a.args,
                                   again(shared, work), walk);
    // Where panels are odd in number the pair's other block begins, so that q and do come out even.
    constexpr int kFirst = kWide || panels(kConfig.value_dim) % 2 == 1 ? 1 : 0;
    load_queries<kConfig.value_dim, kFirst>(shared.d_o, a.d_o, shared.delta(), a.args.delta, a.args,
                                            again(shared, work), walk);
  }

  // By a whole warp or, of pairs, by one of its threads. Where pairs stay: queries of the next work
  // tile come while keys of the last are read. It is taken only then, as pairs that wait for
  // the dq semaphore behind it should not wait for more.
  static DFA_DEVICE void copy(const Sm90BackwardArgs& a, Shared shared) {
    if (kPaired && !starts_copies()) return;
    if constexpr (kPersistent) {
      const bool takes = rank() == 0;
      unsigned n = 0;
      if (takes) take_work_tile(a.args, shared, 0);
      for_work_tiles<false>(a.args, shared, [&](const WorkTile& work, unsigned work_tiles_before) {
        for (Walk walk = Walk::of(a.args, work); walk.any() && walk.more(); walk.next()) {
          shared.place(n++);
          load_tiles(a, shared, work, walk);
        }
        shared.place(n);
        shared.q.wait_empty();
        if (takes) take_work_tile(a.args, shared, work_tiles_before + 1);
      });
    } else {
      const WorkTile of_cluster = cluster_work_tile(a.args, shared),
                     work = own_work_tile(of_cluster);
      Walk walk = Walk::of(a.args, of_cluster);
      if (!walk.any()) return;
      load_keys(a, shared, work);
      for (; walk.more(); walk.next()) {
        load_tiles(a, shared, work, walk);
        shared.q.next();
        shared.d_o.next();
      }
    }
    if constexpr (!kPaired) {
      shared.d_o.wait_all_empty();
      shared.q.wait_all_empty();
    }
  }

  // Of each work tile begin(work, work tiles before), then body(work, the tiles to whose dq this
  // block adds).
  template <typename Begin, typename Body>
  static DFA_DEVICE void for_dq_tiles(const KernelArgs& args, const Shared& shared,
                                      const Begin& begin, const Body& body) {
    unsigned tiles = 0;
    for_work_tiles<false>(args, shared, [&](const WorkTile& work, unsigned work_tiles_before) {
      begin(work, work_tiles_before);
      const Walk all = Walk::of(args, work);
      body(work, dq_walk(all, tiles));
      if (all.any()) tiles += all.count();
    });
  }

  // Where pairs stay this thread loads keys as well.
  static DFA_DEVICE void serve_dq_semaphore(const Sm90BackwardArgs& a, const Shared& shared) {
    unsigned phase = 0;
    for_dq_tiles(
        a.args, shared,
        [&](const WorkTile& work, unsigned before) {
          if constexpr (kPersistent) load_next_keys(a, shared, work, before);
        },
        [&](const WorkTile& work, const DqWalk& walk) {
          if constexpr (!Dq::kSerialized) return;
          if constexpr (kConfig.early_release()) {
            acquire_dq_semaphore<Dq>(a.args, work, walk, shared.acquired(), shared.seen(), phase);
          } else {
            dfa::serve_dq_semaphore<Dq>(a.args, work, walk, shared.acquired(), shared.added(),
                                        phase);
          }
        });
  }

  // The first warpgroup, where it does nothing else. Its last warp may round, or zero, others' dq.
  static DFA_DEVICE void serve(const Sm90BackwardArgs& a, const Shared& shared) {
    ptx::setmaxnreg_dec<kGiven>();
    if (threadIdx.x < 32) {
      copy(a, shared);
    } else if (threadIdx.x < 64) {
      if ((Dq::kSerialized || kPersistent) && threadIdx.x == 32) serve_dq_semaphore(a, shared);
      if (threadIdx.x == 32) Sm90DqPostprocess<kConfig, Sm90Keys>::await_zeros(a.args, shared);
    } else if (threadIdx.x < 96) {
      if (threadIdx.x == 64) Sm90SemaphoreReleaser<kConfig, Sm90Keys>::run(a.args, shared);
    } else {
      Sm90DqPostprocess<kConfig, Sm90Keys>::run(a.args, shared);
    }
  }

  // Of a pair, whose warps keep ds for dq of this block and send ds for dq of the other.

  static constexpr int kWarpBytes = 16 * kPanelRowBytes;  // a warp's rows of ds, of 64 queries

  // A warp's rows, by one of its lanes, to the place `to` of the other block, whose barrier counts
  // them.
  static DFA_DEVICE void send_rows(int rank, unsigned from, unsigned to, unsigned barrier) {
    ptx::send_bytes(ptx::of_pair(to, 1 - rank), from, kWarpBytes, ptx::of_pair(barrier, 1 - rank));
  }

  // A warpgroup with keys.

  // Operands of a share of dq, of a block's keys and their ds.
  static DFA_DEVICE Descriptor dq_left(unsigned keys, int place) {
    return k_in_rows<kBlockK>(keys + Dq::panel(place) * panel_bytes(kBlockK));
  }
  static DFA_DEVICE Descriptor dq_right(unsigned ds, int place) {
    return k_in_rows<kBlockK>(ds + Dq::part(place) * (Dq::kQueries / kPanelColumns) *
                                       panel_bytes(kBlockK));
  }

  // kKeep = 1: added to what the share has.
  template <int kKeep>
  static DFA_DEVICE void multiply_dq(typename Dq::Share& share, Descriptor keys, Descriptor ds) {
    const Descriptor left = Dq::kByRows ? ds : keys, right = Dq::kByRows ? keys : ds;
    ptx::multiply_transposed<kElement, kKeep>(share, left.bits(), right.bits());
#pragma unroll
    for (int step = 1; step < kBlockK / 16; ++step) {
      ptx::multiply_transposed<kElement, 1>(share, left.moved(row_step(step)).bits(),
                                            right.moved(row_step(step)).bits());
    }
  }

  static DFA_DEVICE void queue_dq(typename Dq::Share& share, unsigned keys, unsigned ds,
                                  int place) {
    const Descriptor left = dq_left(keys, place), right = dq_right(ds, place);
    ptx::pin(share);
    ptx::fence_products();
    multiply_dq<0>(share, left, right);
    ptx::commit_products();
  }

  // dk and dv of a warpgroup that has both.
  static DFA_DEVICE void store_gradients(const Sm90BackwardArgs& a, const Shared& shared, int group,
                                         const WorkTile& work, const float (&dk)[kDims][4],
                                         const float (&dv)[kValues][4]) {
    store_gradient(a.args, a.dv, shared.base + kVAt, group, work, dv, Factor::of(a.args).factor);
    store_gradient(a.args, a.dk, shared.base, group, work, dk, a.args.scale);
    ptx::wait_stores_read();
  }
};

}  // namespace dfa
