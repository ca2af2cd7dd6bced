#pragma once

#include "kernels/backward/sm90_dq_rounding.cuh"
#include "kernels/ptx/matrix.cuh"

namespace dfa {

// sm90_dq_rounding.cuh's, through registers: beside wide tiles there is no shared memory left for
// sums on their way, and a warp with few registers would have too few of them on theirs. So those
// round that compute, while they wait for their next keys. Of sums as they come, all of which
// somebody has zeroed.
template <BackwardConfig kConfig>
struct Sm90WideDqRounding : Sm90DqRounding<kConfig> {
  using Base = Sm90DqRounding<kConfig>;
  using Dq = typename Base::Dq;

  // Where a lane's first four elements of a tile go, counted by 8 bytes, and their row. Two lanes
  // exchange words, so that either stores 8 bytes and four 32 of a row.
  struct Place {
    unsigned at;
    int row;
  };
  static DFA_DEVICE Place place_of(const KernelArgs& args, int tile) {
    const int head = tile / Dq::tiles(args), lane = static_cast<int>(ptx::thread_index() % 32);
    const int row = tile % Dq::tiles(args) * kConfig.block_q + lane / 4;
    const long long offset =
        head_offset<kConfig.element>(args.q_strides, head / args.hq, head % args.hq) +
        2 * row * args.q_strides.row;
    return {static_cast<unsigned>(offset / 8) + lane % 2 * 2 + lane / 2 % 2, row};
  }

  // What a warp takes at once of a tile: so many fragments (8 queries, 16 columns), the `piece`-th
  // of as many as lie in memory.
  template <int kFragments>
  class Piece {
   public:
    static constexpr int kOfColumns = Dq::kFragments / kFragments;  // of 16 columns
    static constexpr int kAll = Dq::kSlots * kOfColumns;            // of a tile
    static_assert(kOfColumns * kFragments == Dq::kFragments && Dq::kParts == 1);

    DFA_DEVICE void clear() {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) sums_[n] = make_float4(0, 0, 0, 0);
    }
    DFA_DEVICE void load(const KernelArgs& args, int tile, int piece) {
      const float* const from = args.dq_sums + static_cast<long long>(tile) * Dq::kTileFloats +
                                piece * kFragments * 128 + lane() * 4;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        sums_[n] = *reinterpret_cast<const float4*>(from + n * 128);
      }
    }
    DFA_DEVICE void finish(const KernelArgs& args, int tile, const Place& place, int piece) {
      round(args);
      discard(args, tile, piece);
      store(args, place, piece);
    }

   private:
    float4 sums_[kFragments];
    unsigned words_[kFragments][2];  // rounded; columns of a fragment as rows, then its queries

    static DFA_DEVICE int lane() { return static_cast<int>(ptx::thread_index() % 32); }
    DFA_DEVICE void round(const KernelArgs& args) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        words_[n][0] = ptx::pack<kConfig.element>(sums_[n].x * args.scale, sums_[n].y * args.scale);
        words_[n][1] = ptx::pack<kConfig.element>(sums_[n].z * args.scale, sums_[n].w * args.scale);
        ptx::transpose(words_[n][0]);
        ptx::transpose(words_[n][1]);
      }
    }
    // When all lanes have read them, as who transposes has.
    static DFA_DEVICE void discard(const KernelArgs& args, int tile, int piece) {
      if (lane() < kFragments * 4) Dq::discard(args, tile, piece * kFragments * 4 + lane());
    }
    DFA_DEVICE void store(const KernelArgs& args, Place place, int piece) const {
      const int column = piece / kOfColumns * 16 + lane() % 2 * 8 + lane() / 2 % 2 * 4;
      const bool odd = lane() % 2 == 1;
      const unsigned stride = static_cast<unsigned>(args.q_strides.row / 4);
      const int first = piece % kOfColumns * kFragments * 8;
      place.row += first;
      place.at += first * stride + piece / kOfColumns * 4;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        const unsigned other =
            __shfl_xor_sync(ptx::kWholeWarp, odd ? words_[n][0] : words_[n][1], 1);
        if (place.row < args.sq && column < args.d) {
          static_cast<uint2*>(args.dq)[place.at] =
              odd ? make_uint2(other, words_[n][1]) : make_uint2(words_[n][0], other);
        }
        place.row += 8;
        place.at += 8 * stride;
      }
    }
  };

  // Of a block that owns keys, of the cluster-th work of all: which tiles it rounds.
  struct Tiles {
    int tile, end, step;
  };
  static DFA_DEVICE Tiles tiles_of(const KernelArgs& args, int cluster) {
    if (!args.rounding.shares(cluster)) return {0, 0, 1};
    const int begin = args.rounding.shared_group(cluster) * Base::tiles_of_group(args);
    // The block's index is read anew, so that no register holds its rank beside the products.
    const int rank = static_cast<int>(ptx::block_index()) % kConfig.cluster;
    return {begin + args.rounding.sharer(cluster) * kConfig.cluster + rank,
            begin + Base::tiles_of_group(args), args.rounding.keys * kConfig.cluster};
  }
  // By a warp, until they may be rounded.
  static DFA_DEVICE void await_share(const KernelArgs& args, int cluster) {
    const Tiles tiles = tiles_of(args, cluster);
    Base::Warp::await_all(args, tiles.tile, tiles.end, tiles.step);
  }

  // By all warps that compute, each its part: sums of the first tile come while they wait.
  class Share {
   public:
    DFA_DEVICE void begin(const KernelArgs& args, int cluster) {
      tiles_ = tiles_of(args, cluster);
#pragma unroll
      for (Sums& sums : sums_) sums.clear();  // else registers would hold the last ones until here
      if (tiles_.tile < tiles_.end) load(args);
    }
    DFA_DEVICE void end(const KernelArgs& args) {
#pragma unroll 1
      while (tiles_.tile < tiles_.end) {
        finish(args);
        tiles_.tile += tiles_.step;
        if (tiles_.tile < tiles_.end) load(args);
      }
    }

   private:
    using Sums = Piece<4>;
    static constexpr int kPieces = Sums::kAll / kConfig.warps;  // the first warps have one more
    static constexpr int kMore = Sums::kAll % kConfig.warps;

    Tiles tiles_;
    Sums sums_[kPieces];

    static DFA_DEVICE int piece(int i) {
      const int warp = static_cast<int>(ptx::thread_index() / 32) - kGroupThreads / 32;
      return warp + i * kConfig.warps;
    }
    DFA_DEVICE void load(const KernelArgs& args) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sums_[i].load(args, tiles_.tile, piece(i));
    }
    DFA_DEVICE void finish(const KernelArgs& args) {
      const Place place = place_of(args, tiles_.tile);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sums_[i].finish(args, tiles_.tile, place, piece(i));
      if (kMore > 0 && piece(kPieces) < Sums::kAll) {
        sums_[0].load(args, tiles_.tile, piece(kPieces));
        sums_[0].finish(args, tiles_.tile, place, piece(kPieces));
      }
    }
  };

  // At the end: of a block's tiles a warp takes 16 columns after the other.
  struct Block {
    DFA_DEVICE Block(unsigned) {}

    DFA_DEVICE void round(const KernelArgs& args) const {
      const auto [first, end] = Base::last_tiles(args);
      if (first >= end) return;
      Base::Warp::await_all(args, first, end, 1);
      const int warp = static_cast<int>(ptx::thread_index()) / 32;
      for (int i = warp; i < (end - first) * Dq::kSlots; i += kConfig.threads() / 32) {
        const int tile = first + i / Dq::kSlots, columns = i % Dq::kSlots;
        Piece<Dq::kFragments> sums;
        sums.load(args, tile, columns);
        sums.finish(args, tile, place_of(args, tile), columns);
      }
    }
  };
};

}  // namespace dfa
