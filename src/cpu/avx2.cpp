#include <immintrin.h>

#include "cpu/engine.h"
#include "cpu/matrix.h"
#include "cpu/peak.h"
#include "cpu/simd_engine.h"
#include "cpu/simd_exp2.h"
#include "cpu/simd_rows_x86.h"

namespace dfa::cpu {
namespace {

// Vectors of 8 fp32.
struct Avx2 : X86Rows {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kBlockRows = 6;  // 12 sums, 2 vectors of B, 1 of A: 15 of 16 registers
  static constexpr int kBlockVecs = 2;
  static constexpr int kBatch = 4;  // vectors that go through exp2 together

  static Vec splat(float x) { return _mm256_set1_ps(x); }
  static Vec broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  // The second operand is what comes out where either is NaN.
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static bool any_greater(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }

  static float first(Vec x) { return _mm256_cvtss_f32(x); }
  static float reduce_max(Vec x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static float reduce_add(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // Lanes [begin, end) of x, `other` elsewhere.
  static Vec keep(Vec x, int begin, int end, Vec other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(before, inside)));
  }

  // x = 2^x; 0 below 2^-126, so for -inf too; NaN stays.
  template <bool kShort, int kCount>
  static void exp2(Vec (&x)[kCount]) {
    Vec whole[kCount], fraction[kCount], power[kCount];
    for (int i = 0; i < kCount; ++i) {
      whole[i] = _mm256_floor_ps(x[i]);
      fraction[i] = x[i] - whole[i];
    }
    exp2_fraction<Avx2, kShort>(fraction, power);
    for (int i = 0; i < kCount; ++i) {
      const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(whole[i]), 23);
      const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(power[i]), shift);
      const __m256 large = _mm256_cmp_ps(x[i], _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
      x[i] = _mm256_and_ps(_mm256_castsi256_ps(bits), large);
    }
  }

  // out[c] = column c of the 8 rows at in, in + in_row, …
  static void transpose(const float* in, std::ptrdiff_t in_row, Vec* out) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(in + i * in_row);
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
      a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      out[j] = _mm256_permute2f128_ps(a[j], a[4 + j], 0x20);
      out[4 + j] = _mm256_permute2f128_ps(a[j], a[4 + j], 0x31);
    }
  }
};

constexpr Engine kEngine = make_engine<Fp32Math<Avx2>>(Target::cpu_avx2);
constexpr MatrixKernels kMatrix = make_matrix_kernels<Fp32Math<Avx2>>();
constexpr PeakLoop kPeak = Peak<Fp32Math<Avx2>>::loop();

}  // namespace

const Engine& avx2_engine() { return kEngine; }
const MatrixKernels& avx2_matrix() { return kMatrix; }
const PeakLoop& avx2_peak() { return kPeak; }

}  // namespace dfa::cpu
