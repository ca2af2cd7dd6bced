#pragma once

#include "kernels/args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/sequence_rows.h"
#include "kernels/schedule/sequence_tiles.h"

// Before a kernel of packed sequences: the tiles of all of them, longest sequences first, so that
// the grid's last blocks have little to do, and zeros in rows of outputs that are of no sequence.
// Lengths are known on the device alone: nobody waits for them, and CUDA graphs hold.
//
// One thread block makes the list of q's tiles, another that of k's. Sequences are sorted by
// classes of lengths, two to a power of two; within one they come as they come. Tiles of queries
// come late ones first, as these see the most keys under a causal mask, tiles of keys early ones
// first, as most queries see those and blocks wait for lower ones only (DqSemaphore).
//
// Whatever cu_seqlens and seqused say, no tile leaves the tensors: begins and lengths are cut to
// what is there, and a list to the tiles it has room for. Those of keys in pages are cut to the
// rows that a block table has columns for.
namespace dfa {

template <bool kPaged>
struct SequenceTiles {
  static constexpr int kClasses = kLengthClasses;

  static DFA_DEVICE int cut(int value, int most) { return cut_rows(value, most); }
  static DFA_DEVICE int begin(const int* cu_seqlens, int i, int total) {
    return sequence_begin(cu_seqlens, i, total);
  }
  static DFA_DEVICE int rows(const int* cu_seqlens, const int* used, int i, int total) {
    return sequence_rows(cu_seqlens, used, i, total);
  }

  // Of q, where dense ones of paged problems have no cu_seqlens.
  static DFA_DEVICE int q_begin(const KernelArgs& args, int i) {
    const PackedArgs& p = args.packed;
    if constexpr (kPaged) {
      if (p.cu_seqlens_q == nullptr) return cut(i * args.sq, p.total_q);
    }
    return begin(p.cu_seqlens_q, i, p.total_q);
  }
  static DFA_DEVICE int q_rows(const KernelArgs& args, int i) {
    const PackedArgs& p = args.packed;
    if constexpr (kPaged) {
      if (p.cu_seqlens_q == nullptr) {
        return cut(p.seqused_q != nullptr ? p.seqused_q[i] : args.sq, args.sq);
      }
    }
    return rows(p.cu_seqlens_q, p.seqused_q, i, p.total_q);
  }

  static DFA_DEVICE SequenceTile sequence(const KernelArgs& args, int i) {
    const PackedArgs& p = args.packed;
    if constexpr (kPaged) {
      const int* const pads = args.paged.leftpad_k;
      const int pad = pads != nullptr ? cut(pads[i], args.sk) : 0;
      const int end = cut(p.seqused_k[i], args.sk);
      return {i, 0, q_rows(args, i), cut(end - pad, args.sk), q_begin(args, i), pad, 0, 0};
    }
    return {i,
            0,
            rows(p.cu_seqlens_q, p.seqused_q, i, p.total_q),
            rows(p.cu_seqlens_k, p.seqused_k, i, p.total_k),
            begin(p.cu_seqlens_q, i, p.total_q),
            begin(p.cu_seqlens_k, i, p.total_k),
            0,
            0};
  }

  // By the work that one of its tiles has: the longer, the lower.
  static DFA_DEVICE int length_class(int rows) {
    if (rows < 2) return kClasses - 1;
    const int power = 31 - __clz(rows);
    return kClasses - 2 - 2 * power - (rows >> (power - 1) & 1);
  }
};

// Zeros, by all threads of a block, in its slice of the rows behind a sequence, or of those ahead
// of the first.
struct SequenceGaps {
  struct Rows {
    int begin, end;
  };

  static DFA_DEVICE Rows gap(const int* cu_seqlens, const int* used, int i, int count, int total) {
    using Tiles = SequenceTiles<false>;
    const int begin = i == 0 ? 0
                             : Tiles::begin(cu_seqlens, i - 1, total) +
                                   Tiles::rows(cu_seqlens, used, i - 1, total);
    return {begin, i == count ? total : Tiles::begin(cu_seqlens, i, total)};
  }

  // Of q, whose begins a paged problem may not say.
  template <bool kPaged>
  static DFA_DEVICE Rows q_gap(const KernelArgs& args, int i) {
    using Tiles = SequenceTiles<kPaged>;
    const PackedArgs& p = args.packed;
    if constexpr (!kPaged) return gap(p.cu_seqlens_q, p.seqused_q, i, args.b, p.total_q);
    const int begin = i == 0 ? 0 : Tiles::q_begin(args, i - 1) + Tiles::q_rows(args, i - 1);
    return {begin, i == args.b ? p.total_q : Tiles::q_begin(args, i)};
  }

  static DFA_DEVICE void clear(void* tensor, const KernelStrides& s, int bytes, const Rows& rows,
                               int heads, int columns) {
    const int chunks = columns * bytes / 16, of_row = heads * chunks;
    const long long all = static_cast<long long>(rows.end - rows.begin) * of_row;
    for (long long i = threadIdx.x; i < all; i += kSequenceThreads) {
      const int chunk = static_cast<int>(i % chunks), head = static_cast<int>(i % of_row) / chunks;
      char* const row =
          static_cast<char*>(tensor) + bytes * ((rows.begin + i / of_row) * s.row + head * s.head);
      reinterpret_cast<uint4*>(row)[chunk] = make_uint4(0, 0, 0, 0);
    }
  }
  static DFA_DEVICE void clear_lse(float* lse, int total, const Rows& rows, int heads) {
    if (lse == nullptr) return;
    const int count = rows.end - rows.begin;
    for (int head = 0; head < heads; ++head) {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kSequenceThreads) {
        lse[static_cast<long long>(head) * total + rows.begin + i] = -ptx::infinity();
      }
    }
  }

  static DFA_DEVICE Rows slice(const Rows& rows, int n, int slices) {
    const int count = rows.end > rows.begin ? rows.end - rows.begin : 0;
    const int each = (count + slices - 1) / slices;
    const int begin = rows.begin + (n * each < count ? n * each : count);
    return {begin, begin + each < rows.begin + count ? begin + each : rows.begin + count};
  }

  template <bool kPaged>
  static DFA_DEVICE void run(const KernelArgs& args, int block) {
    const PackedArgs& p = args.packed;
    const int i = block / p.gap_slices, n = block % p.gap_slices;
    const Rows q = slice(q_gap<kPaged>(args, i), n, p.gap_slices);
    if (args.d_o == nullptr) {
      clear(args.o, args.o_strides, p.element_bytes, q, args.hq, args.d_v);
      clear_lse(args.lse, p.total_q, q, args.hq);
      return;
    }
    if constexpr (kPaged) return;  // has no backward
    const Rows k = slice(gap(p.cu_seqlens_k, p.seqused_k, i, args.b, p.total_k), n, p.gap_slices);
    clear(args.dq, args.q_strides, p.element_bytes, q, args.hq, args.d);
    clear(args.dk, args.k_strides, p.element_bytes, k, args.hk, args.d);
    clear(args.dv, args.v_strides, p.element_bytes, k, args.hk, args.d_v);
  }
};

// Block 0: tiles of q, block 1: of k, the others: what is of no sequence.
template <bool kPaged>
DFA_DEVICE void list_sequence_tiles(const KernelArgs& args) {
  using Tiles = SequenceTiles<kPaged>;
  if (blockIdx.x >= kListBlocks) {
    ptx::griddepcontrol_wait();
    SequenceGaps::run<kPaged>(args, static_cast<int>(blockIdx.x) - kListBlocks);
    return;
  }
  extern __shared__ __align__(128) char smem[];
  int* const offsets = reinterpret_cast<int*>(smem);
  const unsigned offsets_at = ptx::shared_address(smem);
  const PackedArgs& p = args.packed;
  const bool of_q = blockIdx.x == 0;
  const int tile_rows = of_q ? p.q_tile_rows : p.k_tile_rows;
  if (tile_rows == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < Tiles::kClasses; i += kSequenceThreads) offsets[i] = 0;
  ptx::griddepcontrol_wait();
  __syncthreads();

  const auto tiles_of = [&](const SequenceTile& s) {
    return ((of_q ? s.sq : s.sk) + tile_rows - 1) / tile_rows;
  };
  const auto class_of = [&](const SequenceTile& s) {
    return Tiles::length_class(of_q ? s.sk : s.sq);
  };
  for (int i = thread; i < args.b; i += kSequenceThreads) {
    const SequenceTile s = Tiles::sequence(args, i);
    ptx::add_shared(offsets_at + 4 * class_of(s), static_cast<unsigned>(tiles_of(s)));
  }
  __syncthreads();
  if (thread == 0) {
    int sum = 0;
    for (int i = 0; i < Tiles::kClasses; ++i) {
      const int of_class = offsets[i];
      offsets[i] = sum;
      sum += of_class;
    }
    const int most = of_q ? p.most_q_tiles : p.most_k_tiles;
    p.tile_counts[of_q ? 0 : 1] = sum < most ? sum : most;
    if (of_q) p.tile_counts[2] = 0;  // work tiles that were taken
  }
  __syncthreads();

  SequenceTile* const list = of_q ? p.q_tiles : p.k_tiles;
  const int most = of_q ? p.most_q_tiles : p.most_k_tiles;
  const int lane = thread % 32;
  for (int i = thread / 32; i < args.b; i += kSequenceThreads / 32) {
    SequenceTile s = Tiles::sequence(args, i);
    const int count = tiles_of(s);
    unsigned reserved = 0;
    if (lane == 0) reserved = ptx::add_shared(offsets_at + 4 * class_of(s), count);
    const int first = static_cast<int>(__shfl_sync(ptx::kWholeWarp, reserved, 0));
    for (int n = lane; n < count && first + n < most; n += 32) {
      s.tile = of_q ? count - 1 - n : n;
      list[first + n] = s;
    }
  }
}

__global__ void __launch_bounds__(kSequenceThreads)
    sequence_tiles(const __grid_constant__ KernelArgs args) {
  list_sequence_tiles<false>(args);
}

}  // namespace dfa
