#include "cpu/avx512_bf16.h"

#include "cpu/peak.h"
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

  // Rounding by adding half a unit and cutting: to nearest, ties away from zero. The instruction
  // that rounds ties to even takes as long as four of these, and a tie is one value in 65536. NaN
  // stays NaN, as the low halves of NaNs that come from bf16 are zero.
  template <int kCount>
  static void store_along(float* row, int index, const Vec (&x)[kCount]) {
    static constexpr std::uint16_t kHighHalves[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                    23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                    45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    float* out = row + index * 8;
    if constexpr (kCount == 1) {
      const __m512i high = _mm512_srli_epi32(with_half(x[0]), 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(high));
    } else {
      static_assert(kCount % 2 == 0);
      const __m512i high_halves = _mm512_loadu_si512(kHighHalves);
      for (int i = 0; i < kCount; i += 2) {
        const __m512i both =
            _mm512_permutex2var_epi16(with_half(x[i]), high_halves, with_half(x[i + 1]));
        _mm512_storeu_si512(out + i * 8, both);
      }
    }
  }

  // Word i: element i of the first row, then of the second.
  static void store_across(float* row, int index, Vec first, Vec second) {
    const __m512i low = _mm512_srli_epi32(with_half(first), 16);
    const __m512i high = _mm512_and_si512(with_half(second), _mm512_set1_epi32(-65536));
    _mm512_storeu_si512(row + index * 16, _mm512_or_si512(low, high));
  }

 private:
  static __m512i with_half(Vec x) {
    return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  }

  static __m256i widened(const Rows& rows, int row, int col) {
    if (row >= rows.count || col >= rows.dim) return _mm256_setzero_si256();
    const std::byte* at = rows.data + row * rows.row_bytes + col * 2;
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
};

constexpr Engine kEngine = make_engine<Bf16Math>(Target::cpu_avx512);
constexpr PeakLoop kPeak = Peak<Bf16Math>::loop();

}  // namespace

const Engine& avx512_bf16_engine() { return kEngine; }
const PeakLoop& avx512_bf16_peak() { return kPeak; }

}  // namespace dfa::cpu
