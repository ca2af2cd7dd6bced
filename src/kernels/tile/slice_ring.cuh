#pragma once

#include "kernels/args.h"
#include "kernels/ptx/copy.cuh"
#include "kernels/tile/paged_tile.cuh"
#include "kernels/tile/product.cuh"
#include "kernels/tile/tile.cuh"

// Slices of heads that are wider than what a product takes at once (kMostColumns): tiles of their
// columns, and the walk through them.
namespace dfa {

// Slices that are walked, in shared memory: one is read while the next ones are copied. The i-th
// lies in stage i % kStages; load(i, address) starts its copy, or does nothing behind the last one.
template <int kStages, int kStageBytes>
class SliceRing {
 public:
  explicit DFA_DEVICE SliceRing(unsigned stages) : stages_(stages) {}

  template <typename Load>
  DFA_DEVICE void start(const Load& load) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      load(i, stage(i));
      ptx::commit_copies();
    }
  }

  // The next slice, which stays until the one after it is asked for. All threads of the block.
  template <typename Load>
  DFA_DEVICE unsigned next(const Load& load) {
    ptx::wait_copies<kStages - 2>();
    __syncthreads();
    load(index_ + kStages - 1, stage(index_ + kStages - 1));
    ptx::commit_copies();
    return stage(index_++);
  }

 private:
  DFA_DEVICE unsigned stage(int index) const {
    return stages_ + static_cast<unsigned>(index) % kStages * kStageBytes;
  }

  unsigned stages_;
  int index_ = 0;
};

// Scores by slices: rows whose slices lie kSliceBytes apart from `rows` on, times those of the
// ring.
template <DType kElement, typename Reader, int kSlices, int kSliceBytes, typename Scores,
          typename Ring, typename Load>
DFA_DEVICE void multiply_slices(Scores& scores, unsigned rows, Ring& ring, const Load& load) {
  clear(scores);
#pragma unroll 1
  for (int i = 0; i < kSlices; ++i) {
    const unsigned slice = ring.next(load);
    multiply_rows<kElement>(scores, Reader::by_rows(rows + i * kSliceBytes),
                            Reader::by_columns(slice));
  }
}

// All slices of rows [first, first + kRows) of a head, one behind the other.
template <DType kElement, int kRows, int kColumns, int kSlices, int kThreads>
DFA_DEVICE void load_slices(unsigned tile, const char* head, long long row_stride, int first,
                            int rows, int columns) {
  constexpr int kBytes = bytes_of(kElement);
#pragma unroll 1
  for (int i = 0; i < kSlices; ++i) {
    load_tile<kElement, kRows, kColumns, kThreads>(tile + i * kBytes * kRows * kColumns,
                                                   head + i * kBytes * kColumns, row_stride, first,
                                                   rows, columns - i * kColumns);
  }
}

// Slice `slice` of a tile of keys, or values, of `columns` columns.
template <DType kElement, int kRows, int kColumns, int kThreads, bool kPaged, typename WorkTile>
DFA_DEVICE void load_key_slice(unsigned to, const KernelArgs& args, const void* tensor,
                               const KernelStrides& strides, const WorkTile& work, int first,
                               int slice, int columns) {
  const char* from = static_cast<const char*>(tensor) + bytes_of(kElement) * kColumns * slice;
  if constexpr (kPaged) {
    load_paged_tile<kElement, kRows, kColumns, kThreads>(
        to, from, strides, args, work.seq, work.kv_head, first, columns - slice * kColumns);
  } else {
    load_tile<kElement, kRows, kColumns, kThreads>(
        to, from + k_head_offset<kElement>(args, strides, work.seq, work.kv_head), strides.row,
        first, work.seq.sk(args), columns - slice * kColumns);
  }
}

}  // namespace dfa
