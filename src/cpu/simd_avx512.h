#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/simd_exp2.h"
#include "cpu/simd_rows_x86.h"

// Vectors of 16 fp32 with AVX-512 F, BW, DQ and VL. Only for files compiled with those flags: the
// unnamed namespace keeps what they emit to themselves.
namespace dfa::cpu {
namespace {

struct Avx512 : X86Rows {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kBlockRows = 6;  // 24 sums, 4 vectors of B, 1 of A: 29 of 32 registers
  static constexpr int kBlockVecs = 4;
  static constexpr int kBatch = 8;  // vectors that go through exp2 together

  static Vec splat(float x) { return _mm512_set1_ps(x); }
  static Vec broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  // The second operand is what comes out where either is NaN.
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static float first(Vec x) { return _mm512_cvtss_f32(x); }
  static float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }
  static float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }

  // Lanes [begin, end) of x, `other` elsewhere.
  static Vec keep(Vec x, int begin, int end, Vec other) {
    const unsigned below_end = end >= kLanes ? 0xffffu : (end <= 0 ? 0u : (1u << end) - 1u);
    const unsigned below_begin = begin >= kLanes ? 0xffffu : (begin <= 0 ? 0u : (1u << begin) - 1u);
    return _mm512_mask_blend_ps(static_cast<__mmask16>(below_end & ~below_begin), other, x);
  }

  // x = 2^x; 0 for -inf, as reduce gives 0 and scalef underflows.
  template <bool kShort, int kCount>
  static void exp2(Vec (&x)[kCount]) {
    constexpr int kDown = 0x01 | 0x08;
    Vec fraction[kCount], power[kCount];
    for (int i = 0; i < kCount; ++i) fraction[i] = _mm512_reduce_ps(x[i], kDown);
    exp2_fraction<Avx512, kShort>(fraction, power);
    for (int i = 0; i < kCount; ++i) x[i] = _mm512_scalef_ps(power[i], x[i]);
  }

  // out[c] = column c of the 16 rows at in, in + in_row, …
  static void transpose(const float* in, std::ptrdiff_t in_row, Vec* out) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(in + i * in_row);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
      a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    // a[4 g + j]: column 4 l + j of rows 4 g … 4 g + 3 in 128-bit lane l.
    for (int j = 0; j < 4; ++j) {
      const __m512 low01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88);
      const __m512 high01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
      const __m512 low23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88);
      const __m512 high23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);
      out[j] = _mm512_shuffle_f32x4(low01, low23, 0x88);
      out[4 + j] = _mm512_shuffle_f32x4(high01, high23, 0x88);
      out[8 + j] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
      out[12 + j] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
    }
  }
};

}  // namespace
}  // namespace dfa::cpu
