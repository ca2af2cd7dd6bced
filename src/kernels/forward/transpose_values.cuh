#pragma once

#include "kernels/forward/sm90_forward_block.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/tile/panel.h"

// v in e4m3 transposed from one stage of shared memory into another, so that keys are side by side
// as tensor cores take them, in the order of key_at(). Each warp has every kTransposers-th 16
// columns of a tile, and takes 32 keys of these at once.
//
// ldmatrix hands a thread two columns of two keys in a word, of matrices of 8 keys each. Bytes of
// one column out of two such words are keys 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t of thread t of four:
// what a row of a transposed matrix has at its places 4 t to 4 t + 3, with no exchange of threads.
// Columns 2 r of eight threads would meet in banks, as rows 8 apart lie in the same: so half of the
// threads give odd columns where others give even ones.
namespace dfa {

template <ForwardConfig kConfig>
struct TransposeValues {
  using Block = Sm90ForwardBlock<kConfig>;
  using Rings = typename Block::Rings;
  static constexpr int kKeys = kConfig.block_k, kColumns = kConfig.value_dim;
  static constexpr int kAtOnce = 32;  // keys
  static constexpr unsigned kRowBytes = kConfig.v_row_bytes();

  // Tiles come in turn through the stages of both rings: no register holds but how many did.
  static DFA_DEVICE void run(Rings rings) {
    for (;; rings.raw.next()) {
      rings.raw.wait_full();
      if (ptx::load_shared(rings.raw_over()) != 0) return;
      at_tile(rings).wait_empty();
      transpose(rings.raw.tile(), at_tile(rings).tile());
      ptx::fence_async();
      __syncwarp();
      ptx::forget(rings.raw.count);
      const unsigned lane = ptx::thread_index() % 32;
      if (lane == 0) ptx::arrive(at_tile(rings).full());
      rings.raw.release(lane);
    }
  }

 private:
  static DFA_DEVICE typename Block::VRing at_tile(const Rings& rings) {
    typename Block::VRing v = rings.v;
    v.stage = rings.raw.count % Block::kStages;
    v.phase = rings.raw.count / Block::kStages % 2;
    return v;
  }

  // A lane's row of the matrices that are loaded, of the first 16 columns and 32 keys: a key.
  static DFA_DEVICE unsigned source_of(unsigned lane) {
    return lane * kPanelRowBytes + (lane % 8 << 4);
  }
  // And of those that are stored: a column. Of four matrices the first and the third have even
  // columns in their upper half, the others odd ones; the last two have the last 16 keys.
  static DFA_DEVICE unsigned target_of(unsigned lane) {
    const unsigned row = lane % 8, matrix = lane / 8;
    const unsigned column = 2 * row + ((row / 4 ^ matrix) & 1);
    const unsigned turn = kRowBytes == kPanelRowBytes ? column % 8 : column / 2 % 4;
    return column * kRowBytes + ((matrix / 2 ^ turn) << 4);
  }

  static DFA_DEVICE void transpose(unsigned raw, unsigned v) {
    constexpr unsigned kEven = 0x6420, kOdd = 0x7531;
    const unsigned thread = ptx::thread_index(), lane = thread % 32;
    const unsigned from = raw + source_of(lane), to = v + target_of(lane);
    const unsigned first = lane < 16 ? kEven : kOdd, second = first ^ kEven ^ kOdd;
#pragma unroll 1
    for (unsigned columns = thread / 32 - 1; columns < kColumns / 16; columns += kTransposers) {
      const unsigned source = (from ^ columns % 8 << 4) + columns / 8 * panel_bytes(kKeys);
      const unsigned target = to + columns * 16 * kRowBytes;
#pragma unroll
      for (int keys = 0; keys < kKeys / kAtOnce; ++keys) {
        unsigned w[4];
        ptx::ldmatrix_trans(w, source + keys * panel_bytes(kAtOnce));
        const unsigned rows[4] = {__byte_perm(w[0], w[1], first), __byte_perm(w[0], w[1], second),
                                  __byte_perm(w[2], w[3], first), __byte_perm(w[2], w[3], second)};
        ptx::store_matrices((target ^ keys % 4 * 32) + keys / 4 * panel_bytes(kColumns), rows);
      }
    }
  }
};

}  // namespace dfa
