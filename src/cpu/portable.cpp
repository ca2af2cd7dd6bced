#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "cpu/engine.h"
#include "cpu/matrix.h"
#include "cpu/peak.h"
#include "cpu/simd_engine.h"
#include "cpu/simd_exp2.h"

namespace dfa::cpu {
namespace {

// Vectors of 4 fp32 by the compiler's vector extension: what every 64-bit processor has.
struct Portable {
  using Vec [[gnu::vector_size(16)]] = float;
  using Ints [[gnu::vector_size(16)]] = std::int32_t;
  static constexpr int kLanes = 4;
  static constexpr int kBlockRows = 6;
  static constexpr int kBlockVecs = 2;
  static constexpr int kBatch = 4;  // vectors that go through exp2 together

  static Vec splat(float x) { return Vec{x, x, x, x}; }
  static Vec broadcast(const float* p) { return splat(*p); }
  static Vec load(const float* p) {
    Vec x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof(x)); }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  // The second operand is what comes out where either is NaN.
  static Vec max(Vec a, Vec b) { return select(a > b, a, b); }
  static bool any_greater(Vec a, Vec b) {
    const Ints greater = a > b;
    return (greater[0] | greater[1] | greater[2] | greater[3]) != 0;
  }
  static float first(Vec x) { return x[0]; }
  static float reduce_max(Vec x) {
    float high = x[0];
    for (int i = 1; i < kLanes; ++i) high = high > x[i] ? high : x[i];
    return high;
  }
  static float reduce_add(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }

  // Lanes [begin, end) of x, `other` elsewhere.
  static Vec keep(Vec x, int begin, int end, Vec other) {
    const Ints lane{0, 1, 2, 3};
    return select((lane >= begin) & (lane < end), x, other);
  }

  // x = 2^x; 0 below 2^-126, so for -inf too; NaN stays. floor by truncation of what fits an int.
  template <bool kShort, int kCount>
  static void exp2(Vec (&x)[kCount]) {
    Ints large[kCount], whole[kCount];
    Vec fraction[kCount], power[kCount];
    for (int i = 0; i < kCount; ++i) {
      large[i] = ~(x[i] < -126.0f);
      const Vec safe = select(large[i] & ~(x[i] > 127.0f), x[i], splat(0.0f));
      const Ints truncated = __builtin_convertvector(safe, Ints);
      whole[i] = truncated + (safe < __builtin_convertvector(truncated, Vec));
      fraction[i] = x[i] - __builtin_convertvector(whole[i], Vec);
    }
    exp2_fraction<Portable, kShort>(fraction, power);
    for (int i = 0; i < kCount; ++i) {
      x[i] = as_floats((as_ints(power[i]) + (whole[i] << 23)) & large[i]);
    }
  }

  // out[c] = column c of the 4 rows at in, in + in_row, …
  static void transpose(const float* in, std::ptrdiff_t in_row, Vec* out) {
    for (int c = 0; c < kLanes; ++c) {
      for (int r = 0; r < kLanes; ++r) out[c][r] = in[r * in_row + c];
    }
  }

  static void read_row(DType type, const void* row, int count, float* out) {
    const auto* bits = static_cast<const std::uint16_t*>(row);
    for (int i = 0; i < count; ++i) {
      switch (type) {
        case DType::fp16: out[i] = to_float(fp16{bits[i]}); break;
        case DType::bf16: out[i] = to_float(bf16{bits[i]}); break;
        case DType::e4m3: out[i] = to_float(e4m3{static_cast<const std::uint8_t*>(row)[i]}); break;
        default: out[i] = static_cast<const float*>(row)[i];
      }
    }
  }

  static void write_row(DType type, void* row, int count, const float* in) {
    auto* bits = static_cast<std::uint16_t*>(row);
    for (int i = 0; i < count; ++i) {
      switch (type) {
        case DType::fp16: bits[i] = to_fp16(in[i]).bits; break;
        case DType::bf16: bits[i] = to_bf16(in[i]).bits; break;
        default: static_cast<float*>(row)[i] = in[i];
      }
    }
  }

 private:
  static Ints as_ints(Vec x) { return reinterpret_cast<Ints>(x); }
  static Vec as_floats(Ints x) { return reinterpret_cast<Vec>(x); }
  static Vec select(Ints mask, Vec yes, Vec no) {
    return as_floats((mask & as_ints(yes)) | (~mask & as_ints(no)));
  }
};

constexpr Engine kEngine = make_engine<Fp32Math<Portable>>(Target::cpu_portable);
constexpr MatrixKernels kMatrix = make_matrix_kernels<Fp32Math<Portable>>();
constexpr PeakLoop kPeak = Peak<Fp32Math<Portable>>::loop();

}  // namespace

const Engine& portable_engine() { return kEngine; }
const MatrixKernels& portable_matrix() { return kMatrix; }
const PeakLoop& portable_peak() { return kPeak; }

}  // namespace dfa::cpu
