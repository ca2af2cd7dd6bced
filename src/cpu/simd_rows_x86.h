#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "dfa/dtype.h"

// Rows of elements to and from fp32 with AVX2 and F16C, eight at a time: head dims are multiples of
// eight. Only for files compiled with those flags.
namespace dfa::cpu {
namespace {

struct X86Rows {
  static void read_row(DType type, const void* row, int count, float* out) {
    const auto* bits = static_cast<const __m128i*>(row);
    switch (type) {
      case DType::bf16:
        for (int i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, widen_bf16(load(bits++)));
        return;
      case DType::fp16:
        for (int i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load(bits++)));
        return;
      case DType::e4m3:
        for (int i = 0; i < count; i += 8) {
          _mm256_storeu_ps(out + i, widen_e4m3(static_cast<const std::byte*>(row) + i));
        }
        return;
      default:
        for (int i = 0; i < count; i += 8) {
          _mm256_storeu_ps(out + i, _mm256_loadu_ps(static_cast<const float*>(row) + i));
        }
    }
  }

  static void write_row(DType type, void* row, int count, const float* in) {
    auto* bits = static_cast<__m128i*>(row);
    switch (type) {
      case DType::bf16:
        for (int i = 0; i < count; i += 8) {
          _mm_storeu_si128(bits++, narrow_bf16(_mm256_loadu_ps(in + i)));
        }
        return;
      case DType::fp16:
        for (int i = 0; i < count; i += 8) {
          _mm_storeu_si128(bits++,
                           _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
        }
        return;
      default:
        for (int i = 0; i < count; i += 8) {
          _mm256_storeu_ps(static_cast<float*>(row) + i, _mm256_loadu_ps(in + i));
        }
    }
  }

 private:
  static __m128i load(const __m128i* bits) { return _mm_loadu_si128(bits); }
  static __m256 widen_bf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  // By way of fp16, whose numbers with the same exponent and mantissa are 2^-8 of e4m3's; its
  // subnormals are read whatever a thread asked to be flushed to 0. The largest code is NaN.
  static __m256 widen_e4m3(const std::byte* eight) {
    const __m128i codes =
        _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(eight)));
    const __m128i low = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(codes, low), 8);
    const __m128i is_nan = _mm_cmpeq_epi16(low, _mm_set1_epi16(0x7f));
    const __m128i nan = _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00));
    const __m128i half = _mm_or_si128(_mm_or_si128(sign, _mm_slli_epi16(low, 7)), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  }

  // To nearest even; NaN stays NaN and turns quiet.
  static __m128i narrow_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_add_epi32(bits, half), quiet, is_nan);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
};

}  // namespace
}  // namespace dfa::cpu
