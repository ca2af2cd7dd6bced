#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// Vector pieces of the AMX engine: exp2, rounding to bf16, transposes, partial rows.
namespace dfa::cpu::amx {
namespace {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

// 2^y = 2^floor(y) p(y - floor(y)) with p(0) = 1: a minimax polynomial in relative error, 2.9e-6 at
// degree 4, 8.6e-5 at degree 3 (enough where the result is rounded to bf16: 2e-3). Eight or seven
// instructions; -inf gives 0, NaN stays, and no input needs a clamp.
template <int degree>
[[gnu::always_inline]] inline __m512 exp2(__m512 y) {
  static_assert(degree == 3 || degree == 4);
  constexpr bool fine = degree == 4;
  const __m512 f = _mm512_reduce_ps(y, 0x09);
  __m512 p;
  if constexpr (fine) {
    p = _mm512_fmadd_ps(_mm512_set1_ps(0.0134266843f), f, _mm512_set1_ps(0.0522424742f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.241280205f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693044845f));
  } else {
    p = _mm512_fmadd_ps(_mm512_set1_ps(0.077067042f), f, _mm512_set1_ps(0.227644991f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695116786f));
  }
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, y);
}

// 32 bf16: first the 16 of `low`, then the 16 of `high`.
[[gnu::always_inline]] inline __m512i to_bf16(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// 32 bf16 in the order even[0], odd[0], even[1], …, rounded to nearest, ties away from zero.
// Integer instructions only: beside the matrix unit, floating point has one port of two (and
// to_bf16 takes three of its slots). Not for NaN with all bits set.
[[gnu::always_inline]] inline __m512i interleave_bf16(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i upper_to_lower =
      _mm512_set4_epi32(static_cast<int>(0x80800f0e), static_cast<int>(0x80800b0a),
                        static_cast<int>(0x80800706), static_cast<int>(0x80800302));
  const __m512i low =
      _mm512_shuffle_epi8(_mm512_add_epi32(_mm512_castps_si512(even), half), upper_to_lower);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  return _mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
}

// Bits of the first `count` lanes, count clamped to [0, 32].
inline std::uint32_t first_lanes(std::int64_t count) {
  if (count <= 0) return 0;
  return count >= 32 ? 0xffffffffu : (1u << count) - 1u;
}

// 32 bf16 of a row of which only `count` are there; the rest is zero.
inline __m512i load_row(const std::uint16_t* row, std::int64_t count) {
  return _mm512_maskz_loadu_epi16(first_lanes(count), row);
}

// In place: element (i, j) of 16 × 16 dwords to (j, i).
[[gnu::always_inline]] inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const __m512i a = r[8 * half + i], b = r[8 * half + i + 4];
      t[8 * half + i] = _mm512_shuffle_i32x4(a, b, 0x88);
      t[8 * half + i + 4] = _mm512_shuffle_i32x4(a, b, 0xdd);
    }
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Lane i of the result: the sum of all lanes of vector i.
inline __m512 sums_of_lanes(__m512i (&vectors)[16]) {
  transpose(vectors);
  __m512 sum = _mm512_castsi512_ps(vectors[0]);
  for (int i = 1; i < 16; ++i) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(vectors[i]));
  return sum;
}

}  // namespace
}  // namespace dfa::cpu::amx
