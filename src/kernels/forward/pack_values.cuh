#pragma once

#include "kernels/forward/sm90_e4m3_args.h"
#include "kernels/forward/value_tiles.h"
#include "kernels/ptx/order.cuh"
#include "kernels/schedule/sequence_rows.h"

// v in e4m3 with keys side by side, as tensor cores take it: their products transpose no operand of
// 8 bits. A thread block for a tile of keys of a head.
namespace dfa {

template <ForwardConfig kConfig>
struct PackValues {
  static constexpr int kKeys = kConfig.block_k, kColumns = kConfig.value_dim;
  static constexpr int kPitch = packed_pitch(kColumns);
  static constexpr int kChunk = 16;

  // 16 columns of a key, zeros behind its end.
  static DFA_DEVICE uint4 chunk_of(const char* from, int left) {
    if (left >= kChunk) return *reinterpret_cast<const uint4*>(from);
    unsigned words[4] = {};
    for (int i = 0; i < left; ++i) {
      words[i / 4] |= static_cast<unsigned>(static_cast<unsigned char>(from[i])) << (8 * (i % 4));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Keys of a tile: those of its head or sequence from `first` on, of `keys` in all.
  struct Source {
    const char* head;
    int first, keys;
  };
  static DFA_DEVICE Source source_of(const PackValuesArgs& a, int tile, int head) {
    const char* const from = static_cast<const char*>(a.from) + head / a.heads * a.strides.batch +
                             head % a.heads * a.strides.head;
    if constexpr (!kConfig.varlen) return {from, tile * kKeys, a.keys};
    // The last sequence that does not begin behind this tile.
    int batch = 0;
    for (int end = a.sequences; end - batch > 1;) {
      const int middle = (batch + end) / 2;
      const int begin = sequence_begin(a.cu_seqlens_k, middle, a.keys);
      (first_value_tile(begin, middle, kKeys) <= tile ? batch : end) = middle;
    }
    const int begin = sequence_begin(a.cu_seqlens_k, batch, a.keys);
    return {from + begin * a.strides.row, (tile - first_value_tile(begin, batch, kKeys)) * kKeys,
            sequence_rows(a.cu_seqlens_k, a.seqused_k, batch, a.keys)};
  }

  static DFA_DEVICE void load(const PackValuesArgs& a, char* keys, const Source& source) {
    constexpr int kChunks = kColumns / kChunk;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kPackThreads) {
      const int key = i / kChunks, column = i % kChunks * kChunk;
      const bool there = source.first + key < source.keys && column < a.columns;
      const char* from = source.head + (source.first + key) * a.strides.row + column;
      *reinterpret_cast<uint4*>(keys + key * kPitch + column) =
          there ? chunk_of(from, a.columns - column) : make_uint4(0, 0, 0, 0);
    }
  }

  // Four columns at four places.
  static DFA_DEVICE void transpose(const char* keys, char* to, int column, int place) {
    const char* from = keys + place / 16 * 16 * kPitch + column;
    const auto word = [&](int i) {
      return *reinterpret_cast<const unsigned*>(from + key_at(place % 16 + i) * kPitch);
    };
    const unsigned first = word(0), second = word(1), third = word(2), fourth = word(3);
    const unsigned low = __byte_perm(first, second, 0x5140);
    const unsigned high = __byte_perm(first, second, 0x7362);
    const unsigned next_low = __byte_perm(third, fourth, 0x5140);
    const unsigned next_high = __byte_perm(third, fourth, 0x7362);
    const unsigned columns[4] = {
        __byte_perm(low, next_low, 0x5410), __byte_perm(low, next_low, 0x7632),
        __byte_perm(high, next_high, 0x5410), __byte_perm(high, next_high, 0x7632)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<unsigned*>(to + (column + i) * kKeys + place) = columns[i];
    }
  }
};

template <ForwardConfig kConfig>
__global__ void __launch_bounds__(kPackThreads)
    pack_values(const __grid_constant__ PackValuesArgs a) {
  using Pack = PackValues<kConfig>;
  extern __shared__ __align__(128) char smem[];
  ptx::griddepcontrol_wait();
  const int tile = static_cast<int>(blockIdx.x) % a.tiles;
  const int head = static_cast<int>(blockIdx.x) / a.tiles;  // of all batches
  const auto source = Pack::source_of(a, tile, head);
  if constexpr (kConfig.varlen) {
    if (source.first < 0 || source.first >= source.keys) return;
  }
  Pack::load(a, smem, source);
  __syncthreads();
  char* to = static_cast<char*>(a.to) +
             static_cast<long long>(blockIdx.x) * (Pack::kKeys * Pack::kColumns);
  constexpr int kPlaces = Pack::kKeys / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kPlaces * Pack::kColumns / 4; i += kPackThreads) {
    Pack::transpose(smem, to, i / kPlaces * 4, i % kPlaces * 4);
  }
}

}  // namespace dfa
