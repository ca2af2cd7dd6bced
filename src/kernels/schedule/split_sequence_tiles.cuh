#pragma once

#include "kernels/forward/split_kv_args.h"
#include "kernels/schedule/sequence_tiles.cuh"
#include "kernels/schedule/split_sequence_tiles.h"
#include "kernels/softmax/tile_mask.h"

// Before a kernel that cuts keys into splits: all sequences' tiles of keys, laid end to end in the
// order of the tiles of queries that see them, are dealt out to thread blocks in equal parts, so
// that none is idle whatever the lengths are. A part may end one tile of queries and begin the
// next: pieces (SplitPiece). Parts are longer where a tile of queries is to have few splits.
//
// Or splits have a size that follows from the tile's own keys: then each is a part, a block takes
// several of them, and how a sequence is cut does not depend on the others. A place of the row is a
// split then, else a tile of keys.
//
// A tile of queries that sees no key counts as one that sees a tile, as its output is written, too.
namespace dfa {

template <bool kVarlen, bool kPaged>
struct SplitSequenceTiles {
  // Of sequences, or the sum of those before one.
  struct Work {
    int tiles, places;  // of queries; that the keys take which these see
  };

  static DFA_DEVICE int larger(int a, int b) { return a > b ? a : b; }

  static DFA_DEVICE SequenceTile sequence(const KernelArgs& args, int i) {
    if constexpr (!kVarlen) return {i, 0, args.sq, args.sk, 0, 0, 0, 0};
    return SequenceTiles<kPaged>::sequence(args, i);
  }

  static DFA_DEVICE int query_tiles(const SplitKvForwardArgs& all, const SequenceTile& s) {
    return (s.sq + all.args.packed.q_tile_rows - 1) / all.args.packed.q_tile_rows;
  }

  // Tiles of keys that a tile of queries sees, one at least.
  static DFA_DEVICE int key_count(const SplitKvForwardArgs& all, const SequenceTile& s, int tile) {
    const int rows = all.args.packed.q_tile_rows;
    const TileRange keys = key_tiles(TileMask::of(all.args, seqlen_of<kVarlen>(s)), tile * rows,
                                     rows, all.splits.key_tile);
    return keys.end > keys.begin ? keys.end - keys.begin : 1;
  }

  // Tiles of keys of a place.
  static DFA_DEVICE int place_tiles(const SplitKvArgs& splits, int count) {
    if (splits.split_tiles == 0) return 1;
    int tiles = splits.split_tiles;
    while (tiles * kMostFixedSplits < count) tiles *= 2;
    return tiles;
  }

  // Places that a tile of queries takes in the row of all.
  static DFA_DEVICE int places(const SplitKvForwardArgs& all, const SequenceTile& s, int tile) {
    const int count = key_count(all, s, tile), tiles = place_tiles(all.splits, count);
    return (count + tiles - 1) / tiles;
  }

  static DFA_DEVICE Work work_of(const SplitKvForwardArgs& all, int i) {
    if (i >= all.args.b) return {0, 0};
    const SequenceTile s = sequence(all.args, i);
    Work work{query_tiles(all, s), 0};
    for (int tile = 0; tile < work.tiles; ++tile) work.places += places(all, s, tile);
    return work;
  }

  // Sums over a thread and those before it, by all threads of the block.
  static DFA_DEVICE Work sum_up_to(Work work, Work* of_warps) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    for (int step = 1; step < 32; step *= 2) {
      const int tiles = __shfl_sync(ptx::kWholeWarp, work.tiles, lane - step),
                places = __shfl_sync(ptx::kWholeWarp, work.places, lane - step);
      if (lane >= step) work = {work.tiles + tiles, work.places + places};
    }
    __syncthreads();
    if (lane == 31) of_warps[warp] = work;
    __syncthreads();
    for (int i = 0; i < warp; ++i) {
      work = {work.tiles + of_warps[i].tiles, work.places + of_warps[i].places};
    }
    return work;
  }

  // Of all sequences; the same for all threads.
  static DFA_DEVICE Work work_of_all(const SplitKvForwardArgs& all, Work* of_warps) {
    Work work{0, 0};
    for (int i = static_cast<int>(threadIdx.x); i < all.args.b; i += kSequenceThreads) {
      const Work one = work_of(all, i);
      work = {work.tiles + one.tiles, work.places + one.places};
    }
    sum_up_to(work, of_warps);
    work = {0, 0};
    for (int i = 0; i < kSequenceThreads / 32; ++i) {
      work = {work.tiles + of_warps[i].tiles, work.places + of_warps[i].places};
    }
    return work;
  }

  // The most places that one tile of queries takes; the same for all threads.
  static DFA_DEVICE int most_places(const SplitKvForwardArgs& all, Work* of_warps) {
    int most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < all.args.b; i += kSequenceThreads) {
      const SequenceTile s = sequence(all.args, i);
      for (int tile = query_tiles(all, s) - 1; tile >= 0; --tile) {
        most = larger(most, places(all, s, tile));
      }
    }
    for (int i = 16; i > 0; i /= 2) {
      most = larger(most, __shfl_xor_sync(ptx::kWholeWarp, most, i));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32].places = most;
    __syncthreads();
    for (int i = 0; i < kSequenceThreads / 32; ++i) most = larger(most, of_warps[i].places);
    return most;
  }

  // Of all places, so many are a part, and so many parts a block's.
  struct Parts {
    int places, of_part, of_block;

    DFA_DEVICE int count() const { return (places + of_part - 1) / of_part; }
  };

  static DFA_DEVICE Parts parts_of(const SplitKvForwardArgs& all, Work* of_warps) {
    constexpr int kFewest = 2;  // tiles: fewer cost more to combine than they save
    const SplitKvArgs& splits = all.splits;
    const int places = work_of_all(all, of_warps).places;
    const int each = (places + splits.blocks - 1) / splits.blocks;
    if (splits.split_tiles > 0) return {places, 1, larger(each, 1)};
    Parts parts{places, larger(each, kFewest), 1};
    if (splits.most_splits > 0) {  // wherever in a part a tile of queries begins
      const int between = splits.most_splits - 1;
      parts.of_part =
          larger(parts.of_part, (most_places(all, of_warps) - 1 + between - 1) / between);
    }
    return parts;
  }

  static DFA_DEVICE void number_parts(const SplitKvArgs& splits, SplitPiece& piece, int first,
                                      bool first_is_begun) {
    const bool fixed = splits.split_tiles > 0;  // else a block has two: of its first and last piece
    piece.part_step = fixed ? 1 : 2;
    piece.first_part = first * piece.part_step + (first_is_begun ? 1 : 0);
    piece.next_part = (first + 1) * piece.part_step;
  }

  // The piece at place `piece` of the list, of one tile of queries: the list has a place for each
  // tile and each block before it.
  static DFA_DEVICE void write(const SplitKvForwardArgs& all, const SequenceTile& s,
                               const Work& before, int count, const Parts& parts, int piece) {
    const int begin = before.places, end = begin + count;
    const int part = piece - before.tiles, first = begin / parts.of_part;
    const int part_begin = part * parts.of_part, part_end = part_begin + parts.of_part;
    const int from = larger(part_begin, begin), to = part_end < end ? part_end : end;
    const int tiles = place_tiles(all.splits, key_count(all, s, s.tile));
    const bool ends_part = to == part_end || to == parts.places;
    SplitPiece one{};
    one.tile = s;
    one.tile.split = part - first;
    one.tile.splits = (end - 1) / parts.of_part - first + 1;
    one.from = (from - begin) * tiles;
    one.to = (to - begin) * tiles;
    one.work = before.tiles;
    number_parts(all.splits, one, first, begin % parts.of_part != 0);
    one.next = piece + (to == end ? 1 : 0) + (to == part_end ? 1 : 0);
    const int block = part / parts.of_block;
    one.is_last = ends_part && (part + 1 == (block + 1) * parts.of_block || to == parts.places);
    all.splits.pieces[piece] = one;
    if (from == part_begin && part == block * parts.of_block) all.splits.first[block] = one;
  }

  // The same of one of a sequence's tiles, if there is one.
  static DFA_DEVICE void write_one(const SplitKvForwardArgs& all, int of, Work before,
                                   const Parts& parts, int piece) {
    SequenceTile s = sequence(all.args, of);
    const int tiles = query_tiles(all, s);
    for (s.tile = 0; s.tile < tiles; ++s.tile) {
      const int count = places(all, s, s.tile);
      const int first = before.tiles + before.places / parts.of_part,
                last = before.tiles + (before.places + count - 1) / parts.of_part;
      if (piece >= first && piece <= last) return write(all, s, before, count, parts, piece);
      before = {before.tiles + 1, before.places + count};
    }
  }

  // Pieces of up to kSequenceThreads sequences, from the first on, in any order. `begins` of those
  // sequences, and behind the last.
  static DFA_DEVICE void write_pieces(const SplitKvForwardArgs& all, int first, const Work* begins,
                                      const Parts& parts) {
    const int count = all.args.b - first < kSequenceThreads ? all.args.b - first : kSequenceThreads;
    const auto place = [&](int i) { return begins[i].tiles + begins[i].places / parts.of_part; };
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
      if constexpr (kVarlen) {
        SequenceGaps::run<kPaged>(args, static_cast<int>(blockIdx.x) - kListBlocks);
      }
      return;
    }
    if (blockIdx.x == 1) {
      const int count = all.splits.most_works * all.splits.heads;
      for (int i = thread; i < count; i += kSequenceThreads) all.splits.ended[i] = 0;
      return;
    }
    const Parts parts = parts_of(all, of_warps);
    if (thread == 0) {
      args.packed.tile_counts[0] = (parts.count() + parts.of_block - 1) / parts.of_block;
    }
    Work before{0, 0};
    for (int first = 0; first < args.b; first += kSequenceThreads) {
      const Work own = work_of(all, first + thread), up_to = sum_up_to(own, of_warps);
      begins[thread + 1] = {before.tiles + up_to.tiles, before.places + up_to.places};
      if (thread == 0) begins[0] = before;
      __syncthreads();
      write_pieces(all, first, begins, parts);
      before = begins[kSequenceThreads];
      __syncthreads();
    }
  }
};

template <bool kVarlen, bool kPaged>
__global__ void __launch_bounds__(kSequenceThreads)
    split_sequence_tiles(const __grid_constant__ SplitKvForwardArgs all) {
  SplitSequenceTiles<kVarlen, kPaged>::run(all);
}

}  // namespace dfa
