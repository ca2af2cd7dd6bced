#pragma once

#include "kernels/args.h"
#include "kernels/device.h"

// Where a sequence lies and how long it is. Kernels ask here and nowhere else, so that the same
// code walks dense tensors, whose sequences are all alike, and packed ones.
namespace dfa {

// Rows of the backward's workspace begin at multiples of it, in each sequence.
inline constexpr int kPaddedRows = 128;

// Where the copy engine counts rows of packed sequences back from.
inline constexpr int kBoxOrigin = 1 << 30;

template <bool kVarlen>
struct SeqlenInfo;

template <>
struct SeqlenInfo<false> {
  int batch;

  DFA_HOST_DEVICE int sq(const KernelArgs& a) const { return a.sq; }
  DFA_HOST_DEVICE int sk(const KernelArgs& a) const { return a.sk; }

  // To its first row, in elements.
  DFA_HOST_DEVICE long long q_offset(const KernelArgs&, const KernelStrides& s) const {
    return batch * s.batch;
  }
  DFA_HOST_DEVICE long long k_offset(const KernelArgs&, const KernelStrides& s) const {
    return batch * s.batch;
  }
  DFA_HOST_DEVICE long long lse_offset(const KernelArgs& a, int head) const {
    return (static_cast<long long>(batch) * a.hq + head) * a.sq;
  }
  DFA_HOST_DEVICE int lse_stride(const KernelArgs& a) const { return a.sq; }  // of heads
  // Likewise in the backward's workspace, in rows.
  DFA_HOST_DEVICE long long padded_offset(const KernelArgs& a, int head) const {
    return (static_cast<long long>(batch) * a.hq + head) * a.padded_sq;
  }
  // Tiles of so many rows there, of all heads before this one and of sequences before.
  template <int kRows>
  DFA_HOST_DEVICE int tiles_before(const KernelArgs& a, int head) const {
    return (batch * a.hq + head) * ((a.sq + kRows - 1) / kRows);
  }

  // The second and the fourth coordinate of a row for the copy engine.
  DFA_HOST_DEVICE int q_box_row(const KernelArgs&, int row) const { return row; }
  DFA_HOST_DEVICE int k_box_row(const KernelArgs&, int row) const { return row; }
  DFA_HOST_DEVICE int q_box_batch() const { return batch; }
  DFA_HOST_DEVICE int k_box_batch() const { return batch; }

  // No register holds what follows from this, from before to behind it.
  template <typename Forget>
  DFA_HOST_DEVICE void forget(const Forget& one) {
    one(batch);
  }
};

// Packed. A map for the copy engine ends where no sequence does, so rows behind the end of one
// would be those of the next: it counts rows from the end of the sequence back from a common
// origin, which is the map's own end, and the fourth dimension, with the stride of a row, says
// where that end is. A fifth takes the origin back (gpu::TiledTensor). What lies behind the end
// reads as zeros and is not written.
template <>
struct SeqlenInfo<true> {
  int batch, q_rows, k_rows, q_begin, k_begin;

  static DFA_HOST_DEVICE SeqlenInfo of(const SequenceTile& tile) {
    return {tile.batch, tile.sq, tile.sk, tile.q_begin, tile.k_begin};
  }

  DFA_HOST_DEVICE int sq(const KernelArgs&) const { return q_rows; }
  DFA_HOST_DEVICE int sk(const KernelArgs&) const { return k_rows; }
  DFA_HOST_DEVICE long long q_offset(const KernelArgs&, const KernelStrides& s) const {
    return q_begin * s.row;
  }
  DFA_HOST_DEVICE long long k_offset(const KernelArgs&, const KernelStrides& s) const {
    return k_begin * s.row;
  }
  // Of keys in pages, whose begin counts the rows of the sequence's: to row `row`, or -1 where its
  // page is none of the cache. Requires a row of the sequence, so that the table has its column.
  DFA_HOST_DEVICE long long paged_k_offset(const KernelArgs& a, const KernelStrides& s,
                                           int row) const {
    const unsigned rows = static_cast<unsigned>(a.paged.page);
    const unsigned at = static_cast<unsigned>(k_begin + row), column = at / rows;
    const int page = a.paged.block_table[batch * a.paged.table_row + column];
    if (page < 0 || page >= a.paged.pages) return -1;
    return page * s.batch + (at - column * rows) * s.row;
  }
  DFA_HOST_DEVICE long long lse_offset(const KernelArgs& a, int head) const {
    return static_cast<long long>(head) * a.packed.total_q + q_begin;
  }
  DFA_HOST_DEVICE int lse_stride(const KernelArgs& a) const { return a.packed.total_q; }
  DFA_HOST_DEVICE int padded_begin() const {
    return (q_begin + batch * kPaddedRows) / kPaddedRows * kPaddedRows;
  }
  DFA_HOST_DEVICE long long padded_offset(const KernelArgs& a, int head) const {
    return static_cast<long long>(head) * a.packed.padded_rows + padded_begin();
  }
  template <int kRows>
  DFA_HOST_DEVICE int tiles_before(const KernelArgs& a, int head) const {
    static_assert(kPaddedRows % kRows == 0);
    return head * (a.packed.padded_rows / kRows) + padded_begin() / kRows;
  }
  DFA_HOST_DEVICE int q_box_row(const KernelArgs&, int row) const {
    return kBoxOrigin - q_rows + row;
  }
  DFA_HOST_DEVICE int k_box_row(const KernelArgs&, int row) const {
    return kBoxOrigin - k_rows + row;
  }
  DFA_HOST_DEVICE int q_box_batch() const { return q_begin + q_rows; }
  DFA_HOST_DEVICE int k_box_batch() const { return k_begin + k_rows; }

  template <typename Forget>
  DFA_HOST_DEVICE void forget(const Forget& one) {
    one(k_begin);
    one(q_begin);
  }
};

}  // namespace dfa
