#pragma once

#include "kernels/args.h"
#include "kernels/ptx/copy.cuh"
#include "kernels/schedule/seqlen_info.h"
#include "kernels/tile/tile.cuh"

namespace dfa {

// load_tile() of rows that lie apart: `offset_of` says where one is, in elements from the head's
// begin, and a negative number where it is none, which reads as zeros.
template <DType kElement, int kRows, int kColumns, int kThreads, typename OffsetOf>
DFA_DEVICE void load_scattered_tile(unsigned tile, const char* head, int columns,
                                    const OffsetOf& offset_of) {
  using Layout = TileLayout<kElement, kColumns>;
  constexpr unsigned kChunks = Layout::kChunks;
  constexpr unsigned kTwos = kChunks & (~kChunks + 1);               // the power of two in it
  constexpr unsigned kAcross = kTwos < kThreads ? kTwos : kThreads;  // threads side by side
  constexpr unsigned kStep = kThreads / kAcross;                     // rows at a time
  constexpr int kPerChunk = 16 / bytes_of(kElement);
  const unsigned row = threadIdx.x / kAcross;
  const unsigned chunk = threadIdx.x % kAcross;
  constexpr unsigned kSteps = (kRows + kStep - 1) / kStep;
  constexpr int kUnroll = 4;  // addresses take registers
#pragma unroll kUnroll
  for (unsigned i = 0; i < kSteps; ++i) {
    if (kRows % kStep != 0 && row + i * kStep >= kRows) break;
    const long long offset = offset_of(static_cast<int>(row + i * kStep));
    const char* source = head + (offset < 0 ? 0 : bytes_of(kElement) * offset) + chunk * 16;
#pragma unroll
    for (unsigned c = 0; c < kChunks; c += kAcross) {
      const bool inside = static_cast<int>(chunk + c) * kPerChunk < columns;
      ptx::copy_16(tile + Layout::offset(row + i * kStep, chunk + c), source + c * 16,
                   inside && offset >= 0);
    }
  }
}

// Of keys or values in pages: each row's address goes through the block table. Rows behind the
// sequence's end become zeros, likewise those whose page is none of the cache.
template <DType kElement, int kRows, int kColumns, int kThreads>
DFA_DEVICE void load_paged_tile(unsigned tile, const void* cache, const KernelStrides& strides,
                                const KernelArgs& args, const SeqlenInfo<true>& seq, int kv_head,
                                int first, int columns) {
  load_scattered_tile<kElement, kRows, kColumns, kThreads>(
      tile, static_cast<const char*>(cache) + bytes_of(kElement) * kv_head * strides.head, columns,
      [&](int row) {
        const int key = first + row;
        return key < seq.k_rows ? seq.paged_k_offset(args, strides, key) : -1;
      });
}

}  // namespace dfa
