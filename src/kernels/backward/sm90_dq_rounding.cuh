#pragma once

#include "kernels/backward/sm90_dq.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/tensor_copy.cuh"

// dq's elements from its sums beside the tensor cores (RoundingOrder): a warp of each block that
// owns keys, with nothing else to do and few registers, rounds some tiles of other heads; blocks at
// the end round those of the last.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90DqRounding {
  using Dq = Sm90Dq<kConfig>;

  // Sums that have been read need not go to memory. Of serialized ones, at 1024 keys, 1.01 of the
  // speed and work per joule at d 64, 0.99 at d 128 under a causal mask.
  static constexpr bool kDiscards = !Dq::kSerialized || kConfig.head_dim <= 64;

  // In RoundingOrder. Where pairs stay, those behind them round at the end.
  static DFA_DEVICE int cluster_index(const KernelArgs& args) {
    // Read anew each time where registers are few.
    const int index =
        static_cast<int>(kConfig.masked ? ptx::block_index() : blockIdx.x) / kConfig.cluster;
    if (!kConfig.persistent || index < args.persistent_clusters) return index;
    return args.rounding.owners() + index - args.persistent_clusters;
  }
  // Of an unsigned index: one of a sign takes a register more, and NVRTC 13.5 spills it.
  static DFA_DEVICE int rank() { return static_cast<int>(blockIdx.x % kConfig.cluster); }
  static DFA_DEVICE int tiles_of_group(const KernelArgs& args) {
    return args.head_swizzle * (args.hq / args.hk) * Dq::tiles(args);
  }

  // Which tiles a block at the end rounds.
  static DFA_DEVICE TileRange last_tiles(const KernelArgs& args) {
    const int cluster = cluster_index(args);
    const int group = args.rounding.last_group(cluster) * tiles_of_group(args);
    const int rounder = args.rounding.rounder(cluster) * kConfig.cluster + rank();
    const int first = group + rounder * kConfig.rounded_tiles();
    int end = first + kConfig.rounded_tiles();
    if (end > group + tiles_of_group(args)) end = group + tiles_of_group(args);
    if (end > args.b * args.hq * Dq::tiles(args)) end = args.b * args.hq * Dq::tiles(args);
    return {first, end};
  }

  // Of a block that owns keys. A tile comes in chunks: 16 columns of 64 queries, of which a lane
  // rounds 8 columns of a query at a time, read across the fragments.
  struct Warp {
    static constexpr unsigned kSlots = kConfig.rounding_slots();
    static constexpr unsigned kChunkBytes = Dq::kFragments * 512;
    static constexpr unsigned kChunks = 4 * Dq::kTileFloats / kChunkBytes;
    static constexpr unsigned kAhead = kSlots;  // chunks asked for
    static_assert(kAhead <= kChunks);
    static_assert(kChunkBytes <= kConfig.rounding_chunk_bytes() && (kSlots & (kSlots - 1)) == 0);

    // Slots and, behind them, their barriers.
    unsigned base;

    DFA_DEVICE unsigned slot(unsigned n) const { return base + n % kSlots * kChunkBytes; }
    DFA_DEVICE unsigned full(unsigned n) const {
      return base + kSlots * kChunkBytes + n % kSlots * 8;
    }
    DFA_DEVICE void init() const {
      for (unsigned n = 0; n < kSlots; ++n) ptx::init_barrier(full(n), 1);
    }

    // The n-th chunk of all.
    DFA_DEVICE void load(const KernelArgs& args, int tile, unsigned n) const {
      ptx::arrive_expecting(full(n), kChunkBytes);
      ptx::load_bytes(slot(n),
                      args.dq_sums + static_cast<long long>(tile) * Dq::kTileFloats +
                          n % kChunks * (kChunkBytes / 4),
                      kChunkBytes, full(n));
    }

    // `at`, `row`: the lane's first row of the tile, in memory and in the head. What is in dq is
    // counted by 16 bytes: there are 24 registers.
    DFA_DEVICE void store(const KernelArgs& args, unsigned at, int row, unsigned n,
                          bool seen) const {
      if constexpr (Dq::kByRows) return store_by_rows(args, at, row, n, seen);
      const int chunk = static_cast<int>(n % kChunks);
      const int part = chunk / Dq::kSlots, column = chunk % Dq::kSlots * 16 + first_column();
      row += part * Dq::kQueries;
      const unsigned stride = static_cast<unsigned>(args.q_strides.row / 8);
      at += part * Dq::kQueries * stride + column / 8;
      const unsigned lane = ptx::thread_index() % 32, query = lane / 2 % 8;
      unsigned from = slot(n) + lane / 16 * 512 + query / 2 * 16 + query % 2 * 4 + lane % 2 * 8;
#pragma unroll 1
      for (int fragment = 0; fragment < Dq::kFragments; fragment += 2) {
        unsigned words[4] = {0, 0, 0, 0};
        if (seen) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            words[i] = ptx::pack<kConfig.element>(
                ptx::load_shared_1(from + 2 * i * 64) * args.scale,
                ptx::load_shared_1(from + (2 * i + 1) * 64) * args.scale);
          }
        }
        if (row < args.sq && column < args.d) {
          static_cast<uint4*>(args.dq)[at] = make_uint4(words[0], words[1], words[2], words[3]);
        }
        row += 16;
        at += 16 * stride;
        from += 1024;
      }
    }
    // The same of a chunk of 16 queries that lie as rows: 16 columns at a time, 8 of which a lane
    // has. Every other two queries begin with their last four, so that more lanes read other banks.
    DFA_DEVICE void store_by_rows(const KernelArgs& args, unsigned at, int row, unsigned n,
                                  bool seen) const {
      const unsigned lane = ptx::thread_index() % 32, query = lane / 2, chunk = n % kChunks;
      const bool late_first = query / 2 % 2 == 1;
      unsigned from = slot(n) + lane % 2 * 512 + query % 8 * 64 + query / 8 * 8;
      const int column = static_cast<int>(chunk / 4 * Dq::kKeyColumns) + first_column();
      at += chunk % 4 * 16 * static_cast<unsigned>(args.q_strides.row / 8) +
            static_cast<unsigned>(column / 8);
      // Of those that exist.
      int left = Dq::kKeyColumns - first_column();
      if (args.d - column < left) left = args.d - column;
      if (row + static_cast<int>(chunk % 4) * 16 >= args.sq) left = 0;
#pragma unroll 1
      for (; left > 0; left -= 16) {
        unsigned words[4] = {0, 0, 0, 0};
        if (seen) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair =
                ptx::load_shared_2(from + i % 2 * 16 + (late_first == (i < 2) ? 32 : 0));
            words[i] = ptx::pack<kConfig.element>(pair.x * args.scale, pair.y * args.scale);
          }
        }
        static_cast<uint4*>(args.dq)[at] = late_first
                                               ? make_uint4(words[2], words[3], words[0], words[1])
                                               : make_uint4(words[0], words[1], words[2], words[3]);
        at += 2;
        from += 1024;
      }
    }
    static DFA_DEVICE void discard(const KernelArgs& args, int tile, unsigned n) {
      constexpr unsigned kLines = kChunkBytes / 128;
      static_assert(kLines <= 32);
      if constexpr (!kDiscards) return;
      const unsigned lane = ptx::thread_index() % 32;
      if (kLines == 32 || lane < kLines) Dq::discard(args, tile, n % kChunks * kLines + lane);
    }
    static DFA_DEVICE bool loads() { return ptx::thread_index() % 32 == 0; }
    static DFA_DEVICE int first_column() { return static_cast<int>(ptx::thread_index() % 2) * 8; }
    static DFA_DEVICE int first_row() {
      const int lane = static_cast<int>(ptx::thread_index() % 32);
      return lane / 16 * 8 + lane / 2 % 8;
    }

    // Until the sums of these tiles are complete, and copies see them.
    static DFA_DEVICE void await_all(const KernelArgs& args, int tile, int end, int step) {
      tile += static_cast<int>(ptx::thread_index() % 32) * step;
      for (; tile < end; tile += 32 * step) {
        Dq::wait_complete(args, {{0}, tile / Dq::tiles(args)}, tile % Dq::tiles(args));
      }
      __syncwarp();
      ptx::fence_async_global();
    }

    DFA_DEVICE void round_shares(const KernelArgs& args) const {
      int cluster = cluster_index(args);
      unsigned n = 0;
      if constexpr (kConfig.persistent) {
#pragma unroll 1
        for (; args.rounding.below_last(cluster); cluster += args.persistent_clusters) {
          round_share(args, cluster, n);
        }
      } else {
        round_share(args, cluster, n);
      }
    }

    // Of one that owns keys, where it has a share. n: chunks before; part: of a work tile in parts,
    // which has as many of its share.
    DFA_DEVICE void round_share(const KernelArgs& args, int cluster, unsigned& n,
                                int part = 0) const {
      if (!args.rounding.shares(cluster)) return;
      if constexpr (kChunks % (2 * kSlots) == 0) n = 0;  // the ring is as it was
      const int begin = args.rounding.shared_group(cluster) * tiles_of_group(args);
      const int end = begin + tiles_of_group(args);
      int step = args.rounding.keys * kConfig.cluster;
      int tile = begin + args.rounding.sharer(cluster) * kConfig.cluster + rank();
      if (kConfig.split_q && part > 0) {
        tile += (part - 1) * step;
        step *= args.parts.parts;
      }
      if (tile >= end) return;
      await_all(args, tile, end, step);
      const unsigned all = n + (end - tile + step - 1) / step * kChunks;
      if (loads()) {
        for (unsigned i = 0; i < kAhead; ++i) load(args, tile, n + i);
      }
#pragma unroll 1
      while (n < all) {
        const int head = tile / Dq::tiles(args);
        const int row = tile % Dq::tiles(args) * kConfig.block_q + first_row();
        const long long offset =
            head_offset<kConfig.element>(args.q_strides, head / args.hq, head % args.hq) +
            2 * row * args.q_strides.row;
        const unsigned at = static_cast<unsigned>(offset / 16);
        const bool seen = Dq::is_seen(args, Dq::tile_at(args, tile));
#pragma unroll 1
        do {
          ptx::wait(full(n), n / kSlots % 2);
          discard(args, n % kChunks > kChunks - kAhead ? tile - step : tile, n);
          store(args, at, row, n, seen);
          __syncwarp();  // all have read the slot
          n += kAhead;
          if (n % kChunks == 0) tile += step;  // from here on it is the one to be loaded
          if (loads() && n < all) load(args, tile, n);
          n -= kAhead - 1;
        } while (n % kChunks != 0);
      }
    }
  };

  // At the end: a block has a multiprocessor to itself and asks for all of its tiles at once.
  struct Block {
    static constexpr int kThreads = kConfig.sm90_dq_threads();
    static constexpr int kMost = kConfig.rounded_tiles();

    // Shared memory: two rounded tiles, sums of tiles, a barrier for each.
    static constexpr int kRoundedBytes = tile_bytes(kConfig.block_q, kConfig.head_dim);
    static constexpr int kSumsAt = 2 * kRoundedBytes;
    static constexpr int kSumsBytes = 4 * Dq::kTileFloats;
    static constexpr int kBarriersAt = kSumsAt + kMost * kSumsBytes;
    static_assert(kBarriersAt + 8 * kMost <= kConfig.smem_bytes());
    static_assert(kThreads <= kConfig.threads());

    unsigned base;

    DFA_DEVICE unsigned rounded(int n) const { return base + n % 2 * kRoundedBytes; }
    DFA_DEVICE unsigned sums(int n) const { return base + kSumsAt + n * kSumsBytes; }
    DFA_DEVICE unsigned full(int n) const { return base + kBarriersAt + 8 * n; }

    DFA_DEVICE void load(const KernelArgs& args, int tile, int n) const {
      Dq::wait_complete(args, {{0}, tile / Dq::tiles(args)}, tile % Dq::tiles(args));
      ptx::fence_async_global();
      ptx::arrive_expecting(full(n), kSumsBytes);
      ptx::load_bytes(sums(n), args.dq_sums + static_cast<long long>(tile) * Dq::kTileFloats,
                      kSumsBytes, full(n));
    }

    DFA_DEVICE void round(const KernelArgs& args) const {
      if (ptx::thread_index() >= kThreads) return;
      const auto [first, end] = last_tiles(args);
      const int thread = static_cast<int>(ptx::thread_index()), place = thread / kGroupThreads;
      if (thread == 0) {
        for (int n = 0; n < kMost; ++n) ptx::init_barrier(full(n), 1);
        ptx::fence_barrier_init();
      }
      ptx::sync_warps(1, kThreads);
      if (thread < end - first) load(args, first + thread, thread);  // a thread for each tile
      __syncwarp();
      for (int n = 0; n < end - first; ++n) {
        typename Dq::Sums sums;
        ptx::wait(full(n), 0);
        for (int i = thread; kDiscards && i < kSumsBytes / 128; i += kThreads) {
          Dq::discard(args, first + n, i);
        }
        Dq::load_staged(args, Dq::tile_at(args, first + n), place, this->sums(n), sums);
        Dq::stage(args, place, sums, rounded(n));
        ptx::sync_warps(1, kThreads);  // all of it is there, and the tile before is stored
        Dq::template store<kThreads>(args, Dq::tile_at(args, first + n), rounded(n));
      }
    }
  };
};

}  // namespace dfa
