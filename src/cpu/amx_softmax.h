#pragma once

#include "cpu/amx_layout.h"
#include "cpu/amx_vector.h"
#include "cpu/engine.h"

// The forward's vector work: scores to weights in bf16 and to sums of rows, a slice at a time.
namespace dfa::cpu::amx {
namespace {

// Which keys of a step its rows see.
struct Sight {
  const HeadShape* shape;
  std::int64_t first_row, last_row, first_key;

  [[gnu::noinline]] std::uint32_t keys(int square, int r) const {
    const std::int64_t row = first_row + r < last_row ? first_row + r : last_row;
    const std::int64_t key = first_key + square * kUnit;
    return first_lanes(shape->mask.key_end(row, shape->sq, shape->sk) - key) &
           ~first_lanes(shape->mask.key_begin(row, shape->sq, shape->sk) - key);
  }
};

// Weight of a score where m = 0 will do, and where m is the row's maximum so far.
struct BoundedWeight {
  BoundedExp2 exp2;

  [[gnu::always_inline]] __m512 operator()(__m512 score, std::int64_t) const { return exp2(score); }
};

struct ShiftedWeight {
  __m512 scale;
  const float* minus_m;  // [32]

  [[gnu::always_inline]] __m512 operator()(__m512 score, std::int64_t row) const {
    return exp2<4>(_mm512_fmadd_ps(score, scale, _mm512_set1_ps(minus_m[row])));
  }
};

// Four vectors: two query rows of one square of scores. Weights of hidden keys become 0 here, among
// the products: a pass over the scores before would keep the matrix unit waiting.
template <class Weight>
struct SoftmaxSlice {
  const std::byte* scores;
  std::byte* weights;  // bf16 P as A tiles, keys in the order 0, 16, 1, 17, …
  float* sums;         // [32][16], partial sums of each row
  Weight weight;
  const Sight* sight;
  std::uint32_t edges;  // a bit a square: some row does not see all of it
  InterleaveConstants interleave = InterleaveConstants::in_registers();

  [[gnu::always_inline]] void finish_row(__m512 p0, __m512 p1, float* sum, std::byte* to) const {
    _mm512_store_si512(to, interleave_bf16(p0, p1, interleave));
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(p0, p1)));
  }

  void hide(std::int64_t square, std::int64_t row, __m512& p0, __m512& p1) const {
    const std::uint32_t seen = sight->keys(static_cast<int>(square), static_cast<int>(row));
    p0 = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen), p0);
    p1 = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> 16), p1);
  }

  [[gnu::always_inline]] void operator()(std::int64_t index) const {
    const std::byte* s = scores + (index >> 3) * 2048 + (index & 7) * 128;
    const std::int64_t row = (index & 15) * 2;
    __m512 p00 = weight(_mm512_load_ps(s), row);
    __m512 p01 = weight(_mm512_load_ps(s + kTileBytes), row);
    __m512 p10 = weight(_mm512_load_ps(s + kRowBytes), row + 1);
    __m512 p11 = weight(_mm512_load_ps(s + kTileBytes + kRowBytes), row + 1);
    if ((edges >> (index >> 4) & 1u) != 0) [[unlikely]] {
      hide(index >> 4, row, p00, p01);
      hide(index >> 4, row + 1, p10, p11);
    }
    finish_row(p00, p01, sums + row * 16, weights + index * 128);
    finish_row(p10, p11, sums + row * 16 + 16, weights + index * 128 + kRowBytes);
  }
};

}  // namespace
}  // namespace dfa::cpu::amx
