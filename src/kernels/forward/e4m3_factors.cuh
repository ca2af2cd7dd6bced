#pragma once

#include "kernels/forward/sm90_e4m3_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/schedule/page_place.h"

namespace dfa {

// Of a scale of logits, as an exponent of 2. 0 is taken for the least number, so that what the mask
// hides stays hidden.
DFA_DEVICE float e4m3_magnitude(float scale_log2) {
  constexpr float kLeast = 0x1p-126f;
  const float magnitude = fabsf(scale_log2);
  return magnitude == 0 ? kLeast : magnitude;
}

// Factors of a warpgroup's queries of a work tile and of its tiles of keys: those of whole
// sequences, or of blocks of rows.
template <bool kBlocks>
struct E4m3Factors {
  struct Steps {};  // all have the same
  float scale_log2, value;

  static DFA_DEVICE E4m3Factors of(const Sm90E4m3Args& a, int batch, int kv_head, int /*query*/) {
    return {a.args.scale_log2 * a.q_descale.of(batch, kv_head) * a.k_descale.of(batch, kv_head),
            a.v_descale.of(batch, kv_head)};
  }

  // What references are of.
  DFA_DEVICE float unit() const { return e4m3_magnitude(scale_log2); }
};

// A block's rows are a multiple of 64, as queries of a warpgroup begin at one: all of them are of
// one block. Tiles of keys divide it.
template <>
struct E4m3Factors<true> {
  // The tile whose scores a step makes weights of, the one before, whose product with v is under
  // way, and the one whose factors are.
  struct Steps {
    struct Tile {
      float scale_log2, value;
    };
    Tile loaded, scores, values;

    DFA_DEVICE void load(const E4m3Factors& all, const Sm90E4m3Args& a, int tile) {
      loaded = all.of_tile(a, tile);
    }
    DFA_DEVICE void step() {
      values = scores;
      scores = loaded;
    }
  };
  int batch, kv_head;
  float of_queries;  // the scale with it

  static DFA_DEVICE E4m3Factors of(const Sm90E4m3Args& a, int batch, int kv_head, int query) {
    const int last = a.args.sq - 1;  // a warpgroup may have no query
    const int block = (query < last ? query : last) / a.blocks.queries;
    return {batch, kv_head, a.args.scale_log2 * a.q_descale.of(batch, kv_head, block * a.blocks.q)};
  }
  DFA_DEVICE typename Steps::Tile of_tile(const Sm90E4m3Args& a, int tile) const {
    const DescaleBlocks& blocks = a.blocks;
    const unsigned block = page_place(static_cast<unsigned>(tile),
                                      static_cast<unsigned>(blocks.tiles), blocks.tiles_inverse)
                               .column;
    return {of_queries * a.k_descale.of(batch, kv_head, block * blocks.k),
            a.v_descale.of(batch, kv_head, block * blocks.v)};
  }

  // References are exponents: scores of each tile have a scale of their own.
  DFA_DEVICE float unit() const { return 1; }
};

}  // namespace dfa
