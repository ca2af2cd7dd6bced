#include "cpu/avx512_bf16.h"

#include "cpu/simd_avx512.h"
#include "cpu/simd_engine.h"

namespace dfa::cpu {
namespace {

// A word is two bf16: q, k, v, do as they are stored, P and dS rounded. Sums stay fp32.
struct Bf16Math {
  using Isa = Avx512;
  using Vec = Isa::Vec;
  static constexpr int kPack = 2;
  static constexpr bool kShortExp = true;

  static Vec multiply_add(Vec a, Vec b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  static void stage_row(DType, const std::byte* row, int count, float* out) {
    __builtin_memcpy(out, row, static_cast<std::size_t>(count) * 2);
  }

  // out[col] = the pair (rows[0][col], rows[1][col]).
  static void stage_step(const Rows& rows, int cols, float* out) {
    for (int col = 0; col < cols; col += 8) {
      const __m256i low = widened(rows, 0, col);
      const __m256i high = _mm256_slli_epi32(widened(rows, 1, col), 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + col), _mm256_or_si256(low, high));
    }
  }

  static void negate(float* words, std::ptrdiff_t count) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, words + i, sizeof(bits));
      bits ^= 0x80008000u;
      __builtin_memcpy(words + i, &bits, sizeof(bits));
    }
  }

  static void store_along(float* row, int index, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + index * 8),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }

  static void store_across(float* row, int index, const Vec (&x)[2]) {
    const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x[1], x[0]));
    // Word i of the result: elements i and 16 + i.
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1));
    const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    _mm512_storeu_si512(row + index * 16, pairs);
  }

 private:
  static __m256i widened(const Rows& rows, int row, int col) {
    if (row >= rows.count || col >= rows.dim) return _mm256_setzero_si256();
    const std::byte* at = rows.data + row * rows.row_bytes + col * 2;
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
};

constexpr Engine kEngine = make_engine<Bf16Math>(Target::cpu_avx512);

}  // namespace

const Engine& avx512_bf16_engine() { return kEngine; }

}  // namespace dfa::cpu
