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

// 2^(scale s) where |scale s| < 2^18, 7e-7, with one instruction less on the port that matters:
//   t = k / 16, the multiple nearest to scale s, as an integer in the low bits of a float
//   2^(scale s) = 2^(k / 16) c ((r + a)^2 + b),  r = scale s - k / 16,  a = 23/16
// Four bits of k look up c 2^(.. / 16). What subtracts k / 16 adds a, too; floor(k / 16 - a) is
// short of floor(k / 16) by 2 for the first seven entries, by 1 for the others, and the table makes
// up.
struct BoundedExp2 {
  static constexpr float kShift = 0x1.8p19f, kA = 1.4375f, kB = 2.0810338f;
  alignas(64) static constexpr float kPowers[16] = {
      0.964450061f, 1.00714993f,  1.05174029f,  1.09830475f,  1.14693093f,  1.19770992f,
      1.25073707f,  0.653055966f, 0.681969225f, 0.712162554f, 0.743692696f, 0.776618779f,
      0.811002612f, 0.846908748f, 0.8844046f,   0.92356056f};

  __m512 scale;
  __m512 powers = _mm512_load_ps(kPowers);

  [[gnu::always_inline]] __m512 operator()(__m512 s) const {
    const __m512 t = _mm512_fmadd_ps(s, scale, _mm512_set1_ps(kShift));
    const __m512 k = _mm512_sub_ps(t, _mm512_set1_ps(kShift + kA));
    const __m512 r = _mm512_fmsub_ps(s, scale, k);
    const __m512 p = _mm512_fmadd_ps(r, r, _mm512_set1_ps(kB));
    const __m512 power = _mm512_permutexvar_ps(_mm512_castps_si512(t), powers);
    return _mm512_scalef_ps(_mm512_mul_ps(power, p), k);
  }
};

// 32 bf16: first the 16 of `low`, then the 16 of `high`.
[[gnu::always_inline]] inline __m512i to_bf16(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// What interleave_bf16 needs. GCC builds such constants again wherever they are used, on ports that
// the loops are short of; in_registers() hides from it that they are constants.
struct InterleaveConstants {
  __m512i half = _mm512_set1_epi32(0x8000);
  __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512i upper_to_lower =
      _mm512_set4_epi32(static_cast<int>(0x80800f0e), static_cast<int>(0x80800b0a),
                        static_cast<int>(0x80800706), static_cast<int>(0x80800302));

  [[gnu::always_inline]] static InterleaveConstants in_registers() {
    InterleaveConstants c;
    asm("" : "+v"(c.half), "+v"(c.upper), "+v"(c.upper_to_lower));
    return c;
  }
};

// 32 bf16 in the order even[0], odd[0], even[1], …, rounded to nearest, ties away from zero.
// Integer instructions only: beside the matrix unit, floating point has one port of two (and
// to_bf16 takes three of its slots). Not for NaN with all bits set.
[[gnu::always_inline]] inline __m512i interleave_bf16(__m512 even, __m512 odd,
                                                      const InterleaveConstants& c = {}) {
  const __m512i low =
      _mm512_shuffle_epi8(_mm512_add_epi32(_mm512_castps_si512(even), c.half), c.upper_to_lower);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), c.half);
  return _mm512_ternarylogic_epi32(low, high, c.upper, 0xf8);  // low | (high & upper)
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

// Lane i of the result: the sum of all lanes of vector i. Each round halves the vectors and brings
// the lanes of one vector together; the sums of different vectors do not wait for each other.
inline __m512 sums_of_lanes(const __m512 (&vectors)[16]) {
  __m512 pairs[8], fours[4], eights[2];
  for (int i = 0; i < 8; ++i) {
    const __m512 a = vectors[2 * i], b = vectors[2 * i + 1];
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto join = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  for (int i = 0; i < 2; ++i) eights[i] = join(fours[2 * i], fours[2 * i + 1]);
  return join(eights[0], eights[1]);
}

// Binary logarithm: x = 2^e m with m in [0.75, 1.5), and log2(m) = 2/ln2 atanh((m - 1) / (m + 1))
// by its series; 1e-7 of the result or of 1. 0 gives -inf, a negative number or NaN gives NaN.
inline __m512 log2(__m512 x) {
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  const __m512 one = _mm512_set1_ps(1.0f);
  const __mmask16 below = _mm512_cmp_ps_mask(m, one, _CMP_LT_OQ);  // m is half of [1, 2)'s
  const __m512 power = _mm512_getexp_ps(x);
  const __m512 e = _mm512_mask_add_ps(power, below, power, one);
  const __m512 t = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one));
  const __m512 t2 = _mm512_mul_ps(t, t);
  __m512 series = _mm512_set1_ps(2 * kLog2E / 9);
  series = _mm512_fmadd_ps(series, t2, _mm512_set1_ps(2 * kLog2E / 7));
  series = _mm512_fmadd_ps(series, t2, _mm512_set1_ps(2 * kLog2E / 5));
  series = _mm512_fmadd_ps(series, t2, _mm512_set1_ps(2 * kLog2E / 3));
  series = _mm512_fmadd_ps(series, t2, _mm512_set1_ps(2 * kLog2E));
  return _mm512_fmadd_ps(series, t, e);
}

}  // namespace
}  // namespace dfa::cpu::amx
