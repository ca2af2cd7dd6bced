#pragma once

#include "kernels/backward/delta.cuh"
#include "kernels/backward/sm90_dq.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/schedule/key_work.cuh"

// lse and delta of later heads beside the tensor cores (BackwardConfig::makes_delta), as delta.cuh
// makes them, by the warp that rounds dq and through the slots of its ring. Those of the first
// args.ready_heads key heads are there before the grid begins. Of each other group of heads
// (RoundingOrder) the works of the group so many before it make those of some tiles each, and
// count; its own works wait until all have. Works are taken in order and wait for lower ones only:
// none waits for ever.
namespace dfa {

template <BackwardConfig kConfig>
struct Sm90Delta {
  using Dq = Sm90Dq<kConfig>;
  static constexpr int kBlockQ = kConfig.block_q;
  // Four rows of o and do at a time, eight lanes a row. A lane reads what it has copied itself:
  // 16 bytes of either, and of the next 64 columns.
  static constexpr int kRows = 4;
  static constexpr int kCopies = panels(kConfig.value_dim);
  static constexpr int kStageBytes = 2 * kCopies * 32 * 16;
  static constexpr int kStages =
      kConfig.rounding_slots() * kConfig.rounding_chunk_bytes() / kStageBytes;
  static constexpr int kBatch = 32;  // rows, one a lane, that are stored at once

  static DFA_DEVICE int lane() { return static_cast<int>(ptx::thread_index() % 32); }

  // The last ones, but for that of works where pairs stay.
  static DFA_DEVICE unsigned* counter(const KernelArgs& args, int group) {
    return args.turns + args.turn_count - (kConfig.persistent ? 2 : 1) - group;
  }
  // Blocks that count for a group.
  static DFA_DEVICE unsigned parts(const KernelArgs& args) {
    return static_cast<unsigned>(args.rounding.keys * kConfig.cluster);
  }

  // Where the n-th copies of a lane are.
  static DFA_DEVICE unsigned stage(unsigned base, int at) {
    return base + at / kRows % kStages * kStageBytes + lane() * 16;
  }

  // The lane's row of those from `at` on. `from`: where the lane begins in o, in 16 bytes, as
  // registers are few; `rows`: how many there are from its first one on.
  static DFA_DEVICE void copy(const KernelArgs& args, unsigned base, unsigned from, int rows,
                              int at) {
    const unsigned to = stage(base, at);
    from += at * static_cast<unsigned>(args.o_strides.row / 8);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool valid = at < rows && (lane() % 8 + 8 * i) * 8 < args.d_v;
      const unsigned safe = valid ? from + 8 * i : 0;
      ptx::copy_16(to + 2 * i * 512, static_cast<const uint4*>(args.o) + safe, valid);
      ptx::copy_16(to + (2 * i + 1) * 512, static_cast<const uint4*>(args.d_o) + safe, valid);
    }
  }

  // Of a row, to all of its lanes.
  static DFA_DEVICE float product(const KernelArgs& args, unsigned base, int at) {
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * kCopies; ++i) {  // eight bytes
      const unsigned o = stage(base, at) + i / 2 * 1024 + i % 2 * 8;
      const float2 x = ptx::load_shared_2(o), y = ptx::load_shared_2(o + 512);
      sum = word_product<kConfig.element>(__float_as_uint(x.x), __float_as_uint(y.x), sum);
      sum = word_product<kConfig.element>(__float_as_uint(x.y), __float_as_uint(y.y), sum);
    }
    return eight_sum(sum);
  }

  static DFA_DEVICE void convert_lse(const KernelArgs& args, int head, int row) {
    constexpr float kLog2E = 1.4426950408889634f;
    row += lane();
    const auto from = static_cast<unsigned>(head) * args.sq + row;
    const auto to = static_cast<unsigned>(head) * args.padded_sq + row;
#pragma unroll
    for (int at = 0; at < kBlockQ; at += kBatch) {
      const float lse = row + at < args.sq ? args.lse[from + at] : -ptx::infinity();
      args.lse_log2[to + at] = lse == -ptx::infinity() ? ptx::infinity() : lse * kLog2E;
    }
  }

  // Rows that saw no key have o = 0.
  static DFA_DEVICE void make_tile(const KernelArgs& args, unsigned base, int tile) {
    const int head = tile / Dq::tiles(args), row = tile % Dq::tiles(args) * kBlockQ;
    const unsigned from =
        head / args.hq * static_cast<unsigned>(args.o_strides.batch / 8) +
        head % args.hq * static_cast<unsigned>(args.o_strides.head / 8) +
        (row + lane() / 8) * static_cast<unsigned>(args.o_strides.row / 8) + lane() % 8;
    const int rows = args.sq - row - lane() / 8;
#pragma unroll 1
    for (int at = 0; at < kStages * kRows; at += kRows) {
      copy(args, base, from, rows, at);
      ptx::commit_copies();
    }
    convert_lse(args, head, row);
    unsigned to = static_cast<unsigned>(head) * args.padded_sq + row + lane();
    float delta = 0;  // of the lane's row of a batch
#pragma unroll 1
    for (int at = 0; at < kBlockQ; at += kRows) {
      ptx::wait_copies<kStages - 1>();
      const float sum = product(args, base, at);
      if (at + kStages * kRows < kBlockQ) copy(args, base, from, rows, at + kStages * kRows);
      ptx::commit_copies();
      const float of_lane = __shfl_sync(ptx::kWholeWarp, sum, lane() % kRows * 8);
      if (lane() / kRows == at % kBatch / kRows) delta = of_lane;
      if (at % kBatch != kBatch - kRows) continue;
      args.delta[to] = delta;
      to += kBatch;
    }
  }

  // The group whose delta a work has a share of.
  static DFA_DEVICE int group_of(const KernelArgs& args, unsigned work) {
    return args.rounding.group(static_cast<int>(work)) + args.ready;
  }

  // The n-th tile of a work's share, that of one of its blocks; -1: there is none.
  static DFA_DEVICE int tile_of(const KernelArgs& args, unsigned work, int n) {
    const int of_head = args.hq / args.hk * Dq::tiles(args);
    const int first = group_of(args, work) * args.heads_at_once;
    int heads = args.b * args.hk - first;
    if (heads > args.heads_at_once) heads = args.heads_at_once;
    const int rank = static_cast<int>(ptx::cluster_rank()) % kConfig.cluster;
    const int tile = args.rounding.sharer(static_cast<int>(work)) * kConfig.cluster + rank +
                     n * static_cast<int>(parts(args));
    return tile < heads * of_head ? first * of_head + tile : -1;
  }

  // Of the work with this number, by the warp of one of its blocks.
  static DFA_DEVICE void make_share(const KernelArgs& args, unsigned base, unsigned& work) {
    if (group_of(args, work) >= args.rounding.groups) return;
#pragma unroll 1
    for (int n = 0;; ++n) {
      ptx::forget(work);  // no register holds what follows from it from tile to tile
      const int tile = tile_of(args, work, n);
      if (tile < 0) break;
      make_tile(args, base, tile);
    }
    ptx::fence_async();  // what it has read is copied to by the engine
    __syncwarp();
    if (lane() == 0) ptx::add_1_release(counter(args, group_of(args, work)));
  }

  // Until all of a work's heads is there, for who then has it copied.
  static DFA_DEVICE void wait(const KernelArgs& args, const KeyWork& work) {
    const int group = (work.batch * args.hk + work.head) / args.heads_at_once;
    if (group < args.ready) return;
    while (ptx::load_acquire(counter(args, group)) != parts(args)) __nanosleep(32);
    ptx::fence_async_global();
  }
};

}  // namespace dfa
