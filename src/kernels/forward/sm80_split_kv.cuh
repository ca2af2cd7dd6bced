#pragma once

#include "kernels/forward/split_kv_combine.cuh"
#include "kernels/forward/split_kv_e4m3.cuh"
#include "kernels/schedule/query_work_tile.cuh"
#include "kernels/softmax/online_softmax.cuh"
#include "kernels/tile/paged_tile.cuh"
#include "kernels/tile/product_tf32.cuh"
#include "kernels/tile/tile.cuh"
#include "spec/forward_config.h"

// FlashAttention forward of few queries a sequence, for sm_80 and up in 16 bits: decode. It reads
// every key and value once and does little else, so what counts is how many bytes are on their way.
// Keys are dense, packed or in pages, and may be in e4m3 (SplitKvE4m3).
//
// A thread block owns an equal part of all sequences' keys, a piece for each tile of queries that
// sees some of it (SplitSequenceTiles); the tile's rows are queries by heads of one key head. Each
// warp takes its share of every tile of keys and keeps a softmax of its own; when a piece's keys
// end, what warps and splits have is combined (SplitKvCombine). Life of tile i of k and v:
//   places found      in step i - stages, for rows may lie in pages
//   copies start      after the barrier of step i - stages + 1
//   copies complete   before the barrier of step i
namespace dfa {

// Of a key and its value, in elements from the begin of their head; negative: there is none.
struct alignas(kKeyPlaceBytes) KeyPlace {
  long long k, v;
};

// What SplitKvE4m3 is asked where keys have the type of the queries.
struct SplitKvPlain {
  static constexpr int kLift = 0;
};

template <ForwardConfig kConfig>
struct Sm80SplitKv : SplitKvCombine<kConfig> {
  using Combine = SplitKvCombine<kConfig>;
  using Combine::kBlockK, Combine::kBytes, Combine::kElement, Combine::kFirstStage;
  using Combine::kHeadDim, Combine::kKBytes, Combine::kKeys, Combine::kPlacesAt;
  using Combine::kKvBytes, Combine::kKvElement, Combine::kStages, Combine::kThreads;
  using Combine::kQueries, Combine::kQueryRows, Combine::kRows, Combine::kStageBytes;
  using Combine::kTileRows, Combine::kValueDim, Combine::kValues, Combine::kWarpKeys;
  using typename Combine::Work;
  static constexpr int kDims = kHeadDim / 16;

  // Two elements in e4m3 are read as one of 16 bits.
  static constexpr bool kE4m3 = kConfig.kv_e4m3;
  static constexpr int kInOne = kE4m3 ? 2 : 1;
  static constexpr DType kProducts = kE4m3 ? DType::fp16 : kElement;
  using E4m3 = Either<kE4m3, SplitKvE4m3<kConfig>, SplitKvPlain>;

  using Logits = LogitsOf<kConfig>;
  using Softmax = OnlineSoftmax<kRows, false, Logits, E4m3::kLift>;
  using QReader = typename ReaderOf<kProducts, kHeadDim>::Type;
  using KReader = typename ReaderOf<kProducts, kHeadDim / kInOne>::Type;
  using VReader = typename ReaderOf<kProducts, kValueDim / kInOne>::Type;

  static DFA_DEVICE Work work_of(const SplitKvForwardArgs& all, const SplitPiece& piece) {
    return {seqlen_of<kConfig.varlen>(piece.tile),
            static_cast<int>(blockIdx.x) % all.splits.heads,
            piece.tile.tile * kQueries,
            piece.tile.split,
            piece.tile.splits,
            piece.first_part,
            piece.next_part,
            piece.part_step};
  }

  static DFA_DEVICE TileRange tiles_of(const SplitPiece& piece, const Work& work,
                                       const TileMask& mask) {
    const TileRange all = key_tiles(mask, work.query, kQueries, kBlockK);
    const int to = all.begin + piece.to;
    return {all.begin + piece.from, to < all.end ? to : all.end};
  }

  static DFA_DEVICE void load_queries(const KernelArgs& args, const Work& work, unsigned q_tile) {
    const char* q =
        static_cast<const char*>(args.q) + kBytes * work.seq.q_offset(args, args.q_strides);
    load_scattered_tile<kElement, kTileRows, kHeadDim, kThreads>(q_tile, q, args.d, [&](int row) {
      if (!work.has(args, row)) return -1LL;
      return work.query_of(row) * args.q_strides.row + work.head_of(row) * args.q_strides.head;
    });
  }

  static DFA_DEVICE KeyPlace place_of(const KernelArgs& args, const Work& work, int key) {
    if (key >= work.seq.sk(args)) return {-1, -1};
    if constexpr (kConfig.paged) {
      return {work.seq.paged_k_offset(args, args.k_strides, key),
              work.seq.paged_k_offset(args, args.v_strides, key)};
    }
    return {work.seq.k_offset(args, args.k_strides) + key * args.k_strides.row,
            work.seq.k_offset(args, args.v_strides) + key * args.v_strides.row};
  }

  // Places of a tile's keys: a thread finds one, and writes it where the next step reads it.
  struct Finder {
    char* smem;
    KeyPlace place;

    DFA_DEVICE void find(const KernelArgs& args, const Work& work, int tile) {
      const int key = static_cast<int>(threadIdx.x);
      if (key < kBlockK) place = place_of(args, work, tile * kBlockK + key);
    }
    DFA_DEVICE void find_and_write(const KernelArgs& args, const Work& work, int tile) {
      find(args, work, tile);
      write(tile);
    }
    DFA_DEVICE void write(int tile) const {
      const unsigned key = threadIdx.x;
      if (key < kBlockK) places(smem, tile)[key] = place;
    }
  };
  static_assert(kBlockK <= kThreads);

  // Of the first two tiles, all at once.
  static DFA_DEVICE void find_first(const KernelArgs& args, const Work& work, char* smem,
                                    int tile) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kBlockK; i += kThreads) {
      const int of = tile + i / kBlockK;
      places(smem, of)[i % kBlockK] = place_of(args, work, of * kBlockK + i % kBlockK);
    }
  }

  static DFA_DEVICE KeyPlace* places(char* smem, int tile) {
    return reinterpret_cast<KeyPlace*>(smem + kPlacesAt) + tile % 2 * kBlockK;
  }

  static DFA_DEVICE void load_keys(const KernelArgs& args, const Work& work, char* smem, int tile,
                                   unsigned to) {
    const KeyPlace* const at = places(smem, tile);
    const int head = work.kv_head(args);
    load_scattered_tile<kKvElement, kBlockK, kHeadDim, kThreads>(
        to, static_cast<const char*>(args.k) + kKvBytes * head * args.k_strides.head, args.d,
        [&](int row) { return at[row].k; });
    load_scattered_tile<kKvElement, kBlockK, kValueDim, kThreads>(
        to + kKBytes, static_cast<const char*>(args.v) + kKvBytes * head * args.v_strides.head,
        args.d_v, [&](int row) { return at[row].v; });
  }

  template <int kColumns, typename Left>
  static DFA_DEVICE void multiply_keys(Sum<kRows, kColumns>& scores, const Left& q,
                                       const KReader& k_columns) {
    if constexpr (kE4m3) {
      multiply_rows_e4m3(scores, q, k_columns);
    } else {
      multiply_rows<kElement>(scores, q, k_columns);
    }
  }

  // Walks the keys of a piece, then combines.
  static DFA_DEVICE void run(const SplitKvForwardArgs& all, const SplitPiece& piece, char* smem) {
    const Work work = work_of(all, piece);
    const KernelArgs& args = all.args;
    const TileMask mask = TileMask::of(args, work.seq);
    const TileRange tiles = tiles_of(piece, work, mask);
    const unsigned q_tile = ptx::shared_address(smem);
    const auto stage_of = [&](int tile) {
      return q_tile + kFirstStage +
             static_cast<unsigned>(tile - tiles.begin) % kStages * kStageBytes;
    };

    if constexpr (!kE4m3) load_queries(args, work, q_tile);
    find_first(args, work, smem, tiles.begin);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int tile = tiles.begin + i;
      if (i >= 2) {  // there are places of two tiles
        __syncthreads();
        Finder{smem, {}}.find_and_write(args, work, tile);
        __syncthreads();
      }
      if (tile < tiles.end) load_keys(args, work, smem, tile, stage_of(tile));
      ptx::commit_copies();
    }
    if constexpr (kE4m3) E4m3::load_queries(all, work, q_tile);  // while keys are on their way
    Finder finder{smem, {}};
    if constexpr (kStages >= 3) {
      __syncthreads();
      finder.find_and_write(args, work, tiles.begin + kStages - 1);
    }

    const int warp = static_cast<int>(threadIdx.x / 32);
    const auto q_rows = QReader::by_rows(q_tile);
    LeftOperand<kRows, kDims> q_operand;
    Sum<kRows, kValues> output;
    clear(output);
    Softmax softmax(args);
    const Logits logits(args, work.seq, work.head * kConfig.pack_gqa);

#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      ptx::wait_copies<kStages - 2>();
      __syncthreads();
      const int next = tile + kStages - 1;
      finder.find(args, work, next + 1);
      if (next < tiles.end) load_keys(args, work, smem, next, stage_of(next));
      ptx::commit_copies();

      const unsigned stage = stage_of(tile);
      const auto k_columns = KReader::by_columns(
          stage + static_cast<unsigned>(kKvBytes * warp * kWarpKeys * kHeadDim));
      const auto v_rows = VReader::by_rows(
          stage + kKBytes + static_cast<unsigned>(kKvBytes * warp * kWarpKeys * kValueDim));
      Sum<kRows, kKeys> scores;
      clear(scores);
      if constexpr (kConfig.q_in_registers()) {
        if (tile == tiles.begin) read_left(q_operand, q_rows);
        multiply_keys(scores, q_operand, k_columns);
      } else {
        multiply_keys(scores, q_rows, k_columns);
      }
      if constexpr (kE4m3) E4m3::undo(scores, q_tile);
      const int key = tile * kBlockK + warp * kWarpKeys;
      logits.apply(args, scores, work.query, key);
      softmax.orient(scores);
      if (mask.needs(work.query, kQueries, tile * kBlockK, kBlockK)) {
        hide_masked<kQueryRows>(scores, mask, work.query * kQueryRows, key, -ptx::infinity());
      }
      softmax.step(scores, output);

      typename Rounded<kProducts, kRows, kKeys>::Type weights;
      round_to_left<kProducts>(weights, scores);
      if constexpr (kE4m3) {
        multiply_e4m3(output, weights, v_rows);
      } else {
        multiply<kElement, 1>(output, weights, v_rows);
      }
      finder.write(next + 1);
    }

    float inverse[kRows][2], lse[kRows][2];
    softmax.finish(inverse, lse);
    ptx::wait_copies<0>();
    __syncthreads();  // outputs take the place of keys
    if constexpr (kE4m3) {
      E4m3::leave(smem, output, inverse, lse);
    } else {
      Combine::leave(smem, output, inverse, lse);
    }
    __syncthreads();
    Combine::combine_warps(all, work, smem);
    if (work.splits > 1 && Combine::is_last(all, piece, work, smem)) {
      Combine::combine_splits(all, work, smem);
    }
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.ctas)
    sm80_split_kv(const __grid_constant__ SplitKvForwardArgs all) {
  using Kernel = Sm80SplitKv<kConfig>;
  extern __shared__ __align__(128) char smem[];

  ptx::griddepcontrol_wait();
  const int block = static_cast<int>(blockIdx.x) / all.splits.heads;
  if (block >= all.args.packed.tile_counts[0]) return;
  const SplitPiece* piece = all.splits.first + block;
  for (;;) {
    Kernel::run(all, *piece, smem);
    if (piece->is_last) return;
    piece = all.splits.pieces + piece->next;
    __syncthreads();  // the next one's queries and keys take the place of this one's
  }
}

}  // namespace dfa
