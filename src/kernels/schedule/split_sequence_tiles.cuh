#pragma once

#include "kernels/forward/split_kv_args.h"
#include "kernels/schedule/sequence_tiles.cuh"
#include "kernels/schedule/split_sequence_tiles.h"
#include "kernels/softmax/tile_mask.h"

// Before a kernel that cuts keys into splits: all sequences' tiles of keys, laid end to end in the
// order of the tiles of queries that see them, are dealt out to thread blocks in equal parts, so
// that none is idle whatever the lengths are. A part may end one tile of queries and begin the
// next: pieces (SplitPiece). Or splits are of one size: then each begins a part of its own, and how
// a sequence is cut does not depend on the others.
//
// A tile of queries that sees no key counts as one that sees a tile, as its output is written, too.
namespace dfa {

template <bool kPaged>
struct SplitSequenceTiles {
  using Tiles = SequenceTiles<kPaged>;

  // Of sequences, or the sum of those before one.
  struct Work {
    int tiles, keys;  // of queries; of keys that these see
  };

  static DFA_DEVICE int rounded(int value, int step) { return (value + step - 1) / step * step; }

  static DFA_DEVICE int query_tiles(const SplitKvForwardArgs& all, const SequenceTile& s) {
    return (s.sq + all.args.packed.q_tile_rows - 1) / all.args.packed.q_tile_rows;
  }

  // Places that a tile of queries takes in the row of all.
  static DFA_DEVICE int places(const SplitKvForwardArgs& all, const SequenceTile& s, int tile) {
    const int rows = all.args.packed.q_tile_rows;
    const TileRange keys = key_tiles(TileMask::of(all.args, SeqlenInfo<true>::of(s)), tile * rows,
                                     rows, all.splits.key_tile);
    const int count = keys.end > keys.begin ? keys.end - keys.begin : 1;
    return all.splits.split_tiles > 0 ? rounded(count, all.splits.split_tiles) : count;
  }

  static DFA_DEVICE Work work_of(const SplitKvForwardArgs& all, int i) {
    if (i >= all.args.b) return {0, 0};
    const SequenceTile s = Tiles::sequence(all.args, i);
    Work work{query_tiles(all, s), 0};
    for (int tile = 0; tile < work.tiles; ++tile) work.keys += places(all, s, tile);
    return work;
  }

  // Sums over a thread and those before it, by all threads of the block.
  static DFA_DEVICE Work sum_up_to(Work work, Work* of_warps) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    for (int step = 1; step < 32; step *= 2) {
      const int tiles = __shfl_sync(ptx::kWholeWarp, work.tiles, lane - step),
                keys = __shfl_sync(ptx::kWholeWarp, work.keys, lane - step);
      if (lane >= step) work = {work.tiles + tiles, work.keys + keys};
    }
    __syncthreads();
    if (lane == 31) of_warps[warp] = work;
    __syncthreads();
    for (int i = 0; i < warp; ++i) {
      work = {work.tiles + of_warps[i].tiles, work.keys + of_warps[i].keys};
    }
    return work;
  }

  // Of all sequences; the same for all threads.
  static DFA_DEVICE Work work_of_all(const SplitKvForwardArgs& all, Work* of_warps) {
    Work work{0, 0};
    for (int i = static_cast<int>(threadIdx.x); i < all.args.b; i += kSequenceThreads) {
      const Work one = work_of(all, i);
      work = {work.tiles + one.tiles, work.keys + one.keys};
    }
    sum_up_to(work, of_warps);
    work = {0, 0};
    for (int i = 0; i < kSequenceThreads / 32; ++i) {
      work = {work.tiles + of_warps[i].tiles, work.keys + of_warps[i].keys};
    }
    return work;
  }

  // Of all tiles of keys, so many are a part.
  struct Parts {
    int keys, tiles;
  };

  // Of a part: few tiles cost more to combine than they save.
  static DFA_DEVICE int part_tiles(const SplitKvArgs& splits, int keys) {
    constexpr int kFewest = 2;
    if (splits.split_tiles > 0) return splits.split_tiles;
    const int tiles = (keys + splits.blocks - 1) / splits.blocks;
    return tiles < kFewest ? kFewest : tiles;
  }

  // The piece at place `piece` of the list, of one tile of queries: the list has a place for each
  // tile and each block before it.
  static DFA_DEVICE void write(const SplitKvForwardArgs& all, const SequenceTile& s,
                               const Work& before, int count, const Parts& parts, int piece) {
    const int part = parts.tiles;
    const int begin = before.keys, end = begin + count, block = piece - before.tiles;
    const int from = block * part > begin ? block * part : begin,
              to = (block + 1) * part < end ? (block + 1) * part : end;
    SplitPiece one{};
    one.tile = s;
    one.first_block = begin / part;
    one.first_is_begun = begin % part != 0 ? 1 : 0;
    one.tile.split = block - one.first_block;
    one.tile.splits = (end - 1) / part - one.first_block + 1;
    one.from = from - begin;
    one.to = to - begin;
    one.work = before.tiles;
    one.place = piece;
    one.is_last = to == (block + 1) * part || to == parts.keys ? 1 : 0;
    all.splits.pieces[piece] = one;
    if (from == block * part) all.splits.first[block] = one;
  }

  // The same of one of a sequence's tiles, if there is one.
  static DFA_DEVICE void write_one(const SplitKvForwardArgs& all, int sequence, Work before,
                                   const Parts& parts, int piece) {
    const int part = parts.tiles;
    SequenceTile s = Tiles::sequence(all.args, sequence);
    const int tiles = query_tiles(all, s);
    for (s.tile = 0; s.tile < tiles; ++s.tile) {
      const int count = places(all, s, s.tile);
      const int first = before.tiles + before.keys / part,
                last = before.tiles + (before.keys + count - 1) / part;
      if (piece >= first && piece <= last) return write(all, s, before, count, parts, piece);
      before = {before.tiles + 1, before.keys + count};
    }
  }

  // Pieces of up to kSequenceThreads sequences, from the first on, in any order. `begins` of those
  // sequences, and behind the last.
  static DFA_DEVICE void write_pieces(const SplitKvForwardArgs& all, int first, const Work* begins,
                                      const Parts& parts) {
    const int count = all.args.b - first < kSequenceThreads ? all.args.b - first : kSequenceThreads;
    const auto place = [&](int i) { return begins[i].tiles + begins[i].keys / parts.tiles; };
    for (int piece = place(0) + static_cast<int>(threadIdx.x); piece < place(count);
         piece += kSequenceThreads) {
      int low = 0, high = count;  // the last sequence that does not begin behind the piece
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (place(middle) <= piece) {
          low = middle;
        } else {
          high = middle;
        }
      }
      write_one(all, first + low, begins[low], parts, piece);
    }
  }

  // Block 0: the list; block 1: no split has ended; the others: what is of no sequence.
  static DFA_DEVICE void run(const SplitKvForwardArgs& all) {
    const KernelArgs& args = all.args;
    extern __shared__ __align__(128) char smem[];
    Work* const begins = reinterpret_cast<Work*>(smem);
    Work* const of_warps = begins + kSequenceThreads + 1;
    const int thread = static_cast<int>(threadIdx.x);
    ptx::griddepcontrol_wait();
    if (blockIdx.x >= kListBlocks) {
      SequenceGaps::run<kPaged>(args, static_cast<int>(blockIdx.x) - kListBlocks);
      return;
    }
    if (blockIdx.x == 1) {
      const int count = all.splits.most_works * all.splits.heads;
      for (int i = thread; i < count; i += kSequenceThreads) all.splits.ended[i] = 0;
      return;
    }
    const Work sum = work_of_all(all, of_warps);
    const Parts parts{sum.keys, part_tiles(all.splits, sum.keys)};
    if (thread == 0) args.packed.tile_counts[0] = (parts.keys + parts.tiles - 1) / parts.tiles;
    Work before{0, 0};
    for (int first = 0; first < args.b; first += kSequenceThreads) {
      const Work own = work_of(all, first + thread), up_to = sum_up_to(own, of_warps);
      begins[thread + 1] = {before.tiles + up_to.tiles, before.keys + up_to.keys};
      if (thread == 0) begins[0] = before;
      __syncthreads();
      write_pieces(all, first, begins, parts);
      before = begins[kSequenceThreads];
      __syncthreads();
    }
  }
};

template <bool kPaged>
__global__ void __launch_bounds__(kSequenceThreads)
    split_sequence_tiles(const __grid_constant__ SplitKvForwardArgs all) {
  SplitSequenceTiles<kPaged>::run(all);
}

}  // namespace dfa
