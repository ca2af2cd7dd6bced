#pragma once

#include "kernels/forward/sm90_e4m3_args.h"
#include "kernels/ptx/arithmetic.cuh"

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
  // Of a walk down the tiles: of the one whose scores a step makes weights of, of the one before,
  // whose product with v is under way, and of the next.
  struct Steps {
    struct Tile {
      float scale_log2, value;
    };
    DescaleArgs k, v;  // of the next tile's block
    int left;          // tiles of the block behind that one
    float of_queries;
    Tile next, scores, values;

    DFA_DEVICE void begin(const E4m3Factors& all, const Sm90E4m3Args& a, int tile) {
      const int block = tile / a.blocks.tiles;
      k = all.k.of_block(block, a.blocks.k);
      v = all.v.of_block(block, a.blocks.v);
      left = tile - block * a.blocks.tiles;
      of_queries = all.of_queries;
      scores = read();
    }
    DFA_DEVICE void load(const Sm90E4m3Args& a) {
      if (left == 0) {
        k = k.of_block(-1, a.blocks.k);
        v = v.of_block(-1, a.blocks.v);
        left = a.blocks.tiles;
      }
      --left;
      next = read();
    }
    DFA_DEVICE void step() {
      values = scores;
      scores = next;
    }

   private:
    DFA_DEVICE Tile read() const { return {of_queries * k.of(0, 0), v.of(0, 0)}; }
  };

  DescaleArgs k, v;  // of the head
  float of_queries;  // the scale with it

  static DFA_DEVICE E4m3Factors of(const Sm90E4m3Args& a, int batch, int kv_head, int query) {
    const int last = a.args.sq - 1;  // a warpgroup may have no query
    const int block = (query < last ? query : last) / a.blocks.queries;
    const DescaleArgs q = a.q_descale.of_head(batch, kv_head).of_block(block, a.blocks.q);
    return {a.k_descale.of_head(batch, kv_head), a.v_descale.of_head(batch, kv_head),
            a.args.scale_log2 * q.of(0, 0)};
  }

  // References are exponents: scores of each tile have a scale of their own.
  DFA_DEVICE float unit() const { return 1; }
};

}  // namespace dfa
