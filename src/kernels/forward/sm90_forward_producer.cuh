#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/forward/sm90_forward_block.cuh"
#include "kernels/forward/value_tiles.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/schedule/recompute_queue.h"
#include "kernels/schedule/split_kv_scheduler.h"
#include "kernels/schedule/split_piece_scheduler.cuh"
#include "kernels/schedule/tile_scheduler.h"
#include "kernels/schedule/varlen_scheduler.cuh"
#include "kernels/softmax/tile_mask.h"
#include "kernels/tile/panel.h"

namespace dfa {

// The producer of sm90_forward: the thread that takes work tiles, tells the warpgroups with queries
// of them (Order) and starts copies of q, k and v.
template <ForwardConfig kConfig>
struct Sm90ForwardProducer : Sm90ForwardBlock<kConfig> {
  using Block = Sm90ForwardBlock<kConfig>;
  using Block::kBlockK, Block::kElement, Block::kGroups, Block::kNotedAt, Block::kPacked,
      Block::kPaired, Block::kQGroupBytes, Block::kQStages, Block::kQueryRows, Block::kSplitKv,
      Block::kTransposed, Block::kVarlen;
  using typename Block::Order, typename Block::QRing, typename Block::Ring, typename Block::Rings,
      typename Block::Seqlen;

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
  using BlockWalk =
      Either<kConfig.split_kv, SplitPieceScheduler,
             Either<kVarlen, VarlenTileScheduler<kConfig.static_max(), !kConfig.paged>,
                    Either<kSplitKv, SplitKvTileScheduler, PersistentTileScheduler>>>;
  using Walk = RecomputeQueue<Notes, kConfig.static_max(), BlockWalk>;

  template <typename Args>
  static DFA_DEVICE BlockWalk scheduler(const Args& a, const Rings& rings) {
    const int block = static_cast<int>(blockIdx.x) / kConfig.cluster;
    const int blocks = static_cast<int>(gridDim.x) / kConfig.cluster;
    if constexpr (kConfig.split_kv) {
      return BlockWalk(a, block, blocks);
    } else if constexpr (kVarlen) {
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
  template <int kColumns, int kRows = kBlockK, bool kOfSequences = kVarlen, typename AnyRing>
  static DFA_DEVICE void load_panels(const TensorMap& map, const WorkTile& work, int row,
                                     AnyRing& ring, unsigned half) {
    constexpr int kPanels = panels(kElement, kColumns);
    const int batch = kOfSequences == kVarlen ? work.seq.k_box_batch() : 0;
    ring.wait_empty();
    ptx::arrive_expecting(ring.full(), kPanels * panel_bytes(kRows));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned to = ring.tile() + panel * panel_bytes(kRows);
      const int column = panel * panel_columns(kElement);
      if constexpr (kPaired) {
        if (panel % 2 != static_cast<int>(half)) continue;
        ptx::load_box_of_pair<kOfSequences>(to, map, ring.full(), column, row, work.kv_head, batch);
      } else {
        ptx::load_box<kOfSequences>(to, map, ring.full(), column, row, work.kv_head, batch);
      }
    }
    ring.next();
  }

  // Keys that lie one after the other.
  struct Keys {
    // Before q, where they need not wait for its only stage.
    static DFA_DEVICE void start(const Sm90ForwardArgs& a, const WorkTile& work,
                                 const TileRange& tiles, Rings& rings) {
      if (kQStages == 1 && tiles.end > tiles.begin) load_k(a, work, tiles.end - 1, rings);
    }
    static DFA_DEVICE void rest(const Sm90ForwardArgs& a, const WorkTile& work,
                                const TileRange& tiles, Rings& rings) {
      const bool keys_first = kQStages == 1 && tiles.end > tiles.begin;
#pragma unroll 1
      for (int tile = tiles.end - 1; tile >= tiles.begin; --tile) {
        const bool last = tile == tiles.end - 1;
        if (!(keys_first && last)) load_k(a, work, tile, rings);
        if (!last) load_v(a, work, tile + 1, rings);
      }
      if (tiles.end > tiles.begin) load_v(a, work, tiles.begin, rings);
    }
    static DFA_DEVICE void load_k(const Sm90ForwardArgs& a, const WorkTile& work, int tile,
                                  Rings& rings) {
      load_panels<kConfig.head_dim>(a.k, work, work.seq.k_box_row(a.args, tile * kBlockK), rings.k,
                                    kPaired ? ptx::cluster_rank() % 2 : 0);
    }
    static DFA_DEVICE void load_v(const Sm90ForwardArgs& a, const WorkTile& work, int tile,
                                  Rings& rings) {
      const unsigned half = kPaired ? 1 - ptx::cluster_rank() % 2 : 0;
      if constexpr (kTransposed) {
        load_panels<kConfig.value_dim>(a.v, work, work.seq.k_box_row(a.args, tile * kBlockK),
                                       rings.raw, half);
      } else if constexpr (kElement == DType::e4m3) {  // of v as pack_values leaves it
        int at = tile;
        if constexpr (kVarlen) at += first_value_tile(work.seq.k_begin, work.seq.batch, kBlockK);
        load_panels<kBlockK, kConfig.value_dim, false>(a.v, work, at * kConfig.value_dim, rings.v,
                                                       half);
      } else {
        load_panels<kConfig.value_dim>(a.v, work, work.seq.k_box_row(a.args, tile * kBlockK),
                                       rings.v, half);
      }
    }
  };

  static DFA_DEVICE void copy(const Sm90ForwardArgs& a, Rings rings) { copy_all<Keys>(a, rings); }

  // `AnyKeys` starts copies of tiles of keys, from the last one of a work tile down, or has others
  // do so.
  template <typename AnyKeys, typename Args>
  static DFA_DEVICE void copy_all(const Args& a, Rings rings) {
    for (Walk walk(scheduler(a, rings), {rings.notes(), rings}); walk.more(); walk.next()) {
      WorkTile work = work_tile_of(a.args, walk);
      TileRange tiles = key_tiles(MaskOf<kConfig>::of(a.args, work.seq), work.row / kQueryRows,
                                  kConfig.work_tile_queries(), kBlockK);
      if constexpr (kSplitKv) tiles = walk.scheduler().tiles_of_piece(tiles);
      if constexpr (kPaired) {
        work.row += static_cast<int>(ptx::cluster_rank() % 2) * kConfig.block_q;
      }
      AnyKeys::start(a, work, tiles, rings);
      rings.q.wait_empty();
      if constexpr (kSplitKv) Order::tell_piece(rings.order(), walk.scheduler().piece());
      if constexpr (kConfig.split_kv) walk.scheduler().note_first();
      Order{walk.place(), walk.again(), work.seq, work.head, work.row, tiles}.tell(rings.order());
      walk.park();
      load_q(a, work, rings.q);
      rings.q.next();
      AnyKeys::rest(a, work, tiles, rings);
      walk.unpark();
    }
    send(rings, Order::kOver);
    if constexpr (kTransposed) end_raw(rings);
  }

  // Who transposes values is told of the end.
  static DFA_DEVICE void end_raw(Rings& rings) {
    rings.raw.wait_empty();
    ptx::store_shared(rings.raw_over(), 1);
    ptx::arrive(rings.raw.full());
  }
};

}  // namespace dfa
