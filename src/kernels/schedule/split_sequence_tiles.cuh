#pragma once

#include "kernels/forward/split_kv_args.h"
#include "kernels/schedule/sequence_tiles.cuh"
#include "kernels/softmax/tile_mask.h"

// sequence_tiles of a kernel that cuts keys into splits: each tile of queries comes once for every
// split of the keys that it sees. How long a split is follows from the lengths of all sequences,
// which are known here alone.
namespace dfa {

// All sequences' tiles of queries, and the tiles of keys that these see.
struct SplitWork {
  int queries, keys;
};

// Tiles of keys of a split. Where all tiles of queries, each in one split, leave room for as many
// again, splits fill one round of thread blocks; else three, so that the last one is short. Below
// kFewest a split costs more to combine than it saves.
DFA_DEVICE int split_tiles_of(const SplitKvArgs& splits, const SplitWork& work) {
  constexpr int kRounds = 3, kFewest = 2;
  if (splits.split_tiles > 0) return splits.split_tiles;
  const long long whole = 1LL * work.queries * splits.heads;
  const long long room =
      2 * whole <= splits.blocks ? splits.blocks - whole : 1LL * kRounds * splits.blocks;
  const long long tiles = (1LL * work.keys * splits.heads + room - 1) / room;
  return tiles < kFewest ? kFewest : static_cast<int>(tiles);
}

DFA_DEVICE int key_tiles_of(const SplitKvForwardArgs& all, const SequenceTile& s, int tile) {
  const int rows = all.args.packed.q_tile_rows;
  const TileRange keys = key_tiles(TileMask::of(all.args, SeqlenInfo<true>::of(s)), tile * rows,
                                   rows, all.splits.key_tile);
  return keys.end - keys.begin;
}

DFA_DEVICE int splits_of(int key_tiles, int split_tiles) {
  return key_tiles <= split_tiles ? 1 : (key_tiles + split_tiles - 1) / split_tiles;
}

template <bool kPaged>
struct SplitSequenceTiles {
  using Tiles = SequenceTiles<kPaged>;

  // Adds up SplitWork in shared memory, by all threads.
  static DFA_DEVICE SplitWork work_of_all(const SplitKvForwardArgs& all, unsigned counters) {
    const KernelArgs& args = all.args;
    const int rows = args.packed.q_tile_rows;
    for (int i = static_cast<int>(threadIdx.x); i < args.b; i += kSequenceThreads) {
      const SequenceTile s = Tiles::sequence(args, i);
      const int count = (s.sq + rows - 1) / rows;
      int keys = 0;
      for (int tile = 0; tile < count; ++tile) keys += key_tiles_of(all, s, tile);
      ptx::add_shared(counters, static_cast<unsigned>(count));
      ptx::add_shared(counters + 4, static_cast<unsigned>(keys));
    }
    __syncthreads();
    return {static_cast<int>(ptx::load_shared(counters)),
            static_cast<int>(ptx::load_shared(counters + 4))};
  }

  static DFA_DEVICE int splits_of_sequence(const SplitKvForwardArgs& all, const SequenceTile& s,
                                           int split_tiles) {
    const int rows = all.args.packed.q_tile_rows, count = (s.sq + rows - 1) / rows;
    int splits = 0;
    for (int tile = 0; tile < count; ++tile) {
      splits += splits_of(key_tiles_of(all, s, tile), split_tiles);
    }
    return splits;
  }

  // Long splits first.
  static DFA_DEVICE int class_of(const SplitKvForwardArgs& all, const SequenceTile& s,
                                 int split_tiles) {
    const int keys = key_tiles_of(all, s, s.sq > 0 ? (s.sq - 1) / all.args.packed.q_tile_rows : 0);
    return Tiles::length_class(keys / splits_of(keys, split_tiles));
  }

  // Splits of one sequence, by a warp, from place `first` of the list on.
  static DFA_DEVICE void list(const SplitKvForwardArgs& all, SequenceTile s, int first,
                              int split_tiles) {
    const PackedArgs& p = all.args.packed;
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (s.tile = (s.sq + p.q_tile_rows - 1) / p.q_tile_rows - 1; s.tile >= 0; --s.tile) {
      s.splits = splits_of(key_tiles_of(all, s, s.tile), split_tiles);
      for (s.split = lane; s.split < s.splits; s.split += 32) {
        if (first + s.split < p.most_q_tiles) p.q_tiles[first + s.split] = s;
      }
      first += s.splits;
    }
  }

  // Block 0: the list; block 1: no split has ended; the others: what is of no sequence.
  static DFA_DEVICE void run(const SplitKvForwardArgs& all) {
    const KernelArgs& args = all.args;
    const PackedArgs& p = args.packed;
    extern __shared__ __align__(128) char smem[];
    int* const offsets = reinterpret_cast<int*>(smem);
    const unsigned offsets_at = ptx::shared_address(smem);
    const int thread = static_cast<int>(threadIdx.x);
    ptx::griddepcontrol_wait();
    if (blockIdx.x >= kListBlocks) {
      SequenceGaps::run<kPaged>(args, static_cast<int>(blockIdx.x) - kListBlocks);
      return;
    }
    if (blockIdx.x == 1) {
      const int count = all.splits.most_splits * all.splits.heads;
      for (int i = thread; i < count; i += kSequenceThreads) all.splits.ended[i] = 0;
      return;
    }
    for (int i = thread; i < Tiles::kClasses + 2; i += kSequenceThreads) offsets[i] = 0;
    __syncthreads();
    const int split_tiles =
        split_tiles_of(all.splits, work_of_all(all, offsets_at + 4 * Tiles::kClasses));
    for (int i = thread; i < args.b; i += kSequenceThreads) {
      const SequenceTile s = Tiles::sequence(args, i);
      ptx::add_shared(offsets_at + 4 * class_of(all, s, split_tiles),
                      static_cast<unsigned>(splits_of_sequence(all, s, split_tiles)));
    }
    __syncthreads();
    if (thread == 0) {
      int sum = 0;
      for (int i = 0; i < Tiles::kClasses; ++i) {
        const int of_class = offsets[i];
        offsets[i] = sum;
        sum += of_class;
      }
      p.tile_counts[0] = sum < p.most_q_tiles ? sum : p.most_q_tiles;
    }
    __syncthreads();
    for (int i = thread / 32; i < args.b; i += kSequenceThreads / 32) {
      const SequenceTile s = Tiles::sequence(args, i);
      const int count = splits_of_sequence(all, s, split_tiles);
      unsigned reserved = 0;
      if (thread % 32 == 0) {
        reserved = ptx::add_shared(offsets_at + 4 * class_of(all, s, split_tiles),
                                   static_cast<unsigned>(count));
      }
      list(all, s, static_cast<int>(__shfl_sync(ptx::kWholeWarp, reserved, 0)), split_tiles);
    }
  }
};

template <bool kPaged>
__global__ void __launch_bounds__(kSequenceThreads)
    split_sequence_tiles(const __grid_constant__ SplitKvForwardArgs all) {
  SplitSequenceTiles<kPaged>::run(all);
}

}  // namespace dfa
