#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/softmax/tile_mask.h"
#include "spec/forward_config.h"

namespace dfa {

// What the copying thread of sm90_forward tells the others of a tile of q: a work tile, or that all
// is over, or that it wants to know when all work tiles so far are done.
template <bool kVarlen>
struct TileOrder {
  static constexpr int kOver = -1, kMeet = -2;
  int place;  // of RecomputeQueue
  bool again;
  SeqlenInfo<kVarlen> seq;
  int head, row;
  TileRange tiles;  // of all groups

  static DFA_DEVICE void tell(unsigned to, int place) {
    ptx::store_shared(to, static_cast<unsigned>(place));
  }
  DFA_DEVICE void tell(unsigned to) const {
    static_assert(kOrderBytes >= 28);
    tell(to, place);
    ptx::store_shared(to + 4, again);
    ptx::store_shared(to + 8, static_cast<unsigned>(seq.batch));
    ptx::store_shared(to + 12, static_cast<unsigned>(head));
    ptx::store_shared(to + 16, static_cast<unsigned>(row));
    ptx::store_shared(to + 20, static_cast<unsigned>(tiles.begin));
    ptx::store_shared(to + 24, static_cast<unsigned>(tiles.end));
    if constexpr (kVarlen) {  // keys are the copying thread's alone to find
      static_assert(kVarlenOrderBytes >= 44);
      ptx::store_shared(to + 32, static_cast<unsigned>(seq.q_rows));
      ptx::store_shared(to + 36, static_cast<unsigned>(seq.k_rows));
      ptx::store_shared(to + 40, static_cast<unsigned>(seq.q_begin));
    }
  }

  // Of num_splits and split_kv: which piece of a work tile, or where it leaves its part; negative
  // where the work tile is whole.
  static DFA_DEVICE void tell_piece(unsigned to, int piece) {
    static_assert(kOrderBytes >= 32);
    ptx::store_shared(to + 28, static_cast<unsigned>(piece));
  }
  static DFA_DEVICE int told_piece(unsigned from) {
    return static_cast<int>(ptx::load_shared(from + 28));
  }
  // By the lane that gives the stage back, as in told().
  static DFA_DEVICE int told_piece(unsigned from, unsigned lane) {
    return static_cast<int>(
        __shfl_sync(ptx::kWholeWarp, lane == 0 ? ptx::load_shared(from + 28) : 0, 0));
  }

  // The lane that gives the stage back reads for its warp.
  static DFA_DEVICE TileOrder told(unsigned from, unsigned lane) {
    uint4 first{}, second{}, third{};
    if (lane == 0) {
      first = ptx::load_words_4(from);
      second = ptx::load_words_4(from + 16);
      if constexpr (kVarlen) third = ptx::load_words_4(from + 32);
    }
    const auto all = [](unsigned word) {
      return static_cast<int>(__shfl_sync(ptx::kWholeWarp, word, 0));
    };
    SeqlenInfo<kVarlen> seq{all(first.z)};
    if constexpr (kVarlen) {
      seq.q_rows = all(third.x);
      seq.k_rows = all(third.y);
      seq.q_begin = all(third.z);
    }
    return {all(first.x), all(first.y) != 0, seq,
            all(first.w), all(second.x),     {all(second.y), all(second.z)}};
  }
};

}  // namespace dfa
