#pragma once

#include "cpu/simd_dropout.h"
#include "cpu/simd_kernel.h"
#include "cpu/simd_pack.h"

// What standard attention needs of an instruction set: fp32 products of whole matrices and the rows
// of a softmax. The products are those of the vector engines.
namespace dfa::cpu {

struct SoftmaxRow {
  float maximum;
  float sum;
};

struct MatrixKernels {
  int lanes;

  // Rows as fp32, `stride` floats apart; rows past the last one are zero up to `height`.
  void (*widen)(const Rows& rows, int height, int stride, float* out);
  void (*narrow_row)(DType type, void* row, int count, const float* in);

  // The right operand of A rowsᵀ and of A rows, for `height` rows.
  void (*pack_columns)(const Rows& rows, int height, float* out);
  void (*pack_steps)(const Rows& rows, int height, float* out);
  void (*product)(LeftOperand a, RightOperand b, Sums c, int rows, int cols, int steps);

  // Of `cols` scores, a multiple of lanes: those outside [begin, end) become 0, the others
  // exp(s - maximum) / sum, in three passes. begin < end.
  SoftmaxRow (*softmax)(float* s, int begin, int end, int cols);
  // The same from a known log-sum-exp, in one pass.
  void (*probabilities)(float* s, int begin, int end, int cols, float lse);
  // A dot product in the arithmetic and order of `product`, so that dP - delta is 0 where it must
  // be.
  float (*dot)(const float* a, const float* b, int count);
  // dp = p (dp - delta)
  void (*score_gradient)(const float* p, float* dp, int cols, float delta);
  // SimdDropout::kept_of.
  void (*kept)(const DropoutDraw& draw, std::uint32_t head, std::int64_t row, std::int64_t key,
               float* to);
};

template <class Math>
struct Matrix {
  using Isa = typename Math::Isa;
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr float kLog2E = 1.44269504f;

  static void mask(float* s, int begin, int end, int cols) {
    for (int j = 0; j < begin; ++j) s[j] = -__builtin_inff();
    for (int j = end; j < cols; ++j) s[j] = -__builtin_inff();
  }

  // s = e^(s - shift), four vectors through each step at a time. The subtraction comes first: near
  // the maximum it is exact, while shift * log2e would be rounded to the size of a logit.
  static void exponentials(float* s, int cols, float shift) {
    constexpr int kCount = 4;
    int j = 0;
    for (; j + kCount * kLanes <= cols; j += kCount * kLanes) exponential<kCount>(s + j, shift);
    for (; j < cols; j += kLanes) exponential<1>(s + j, shift);
  }

  template <int kCount>
  static void exponential(float* s, float shift) {
    Vec x[kCount];
    for (int i = 0; i < kCount; ++i) {
      x[i] = (Isa::load(s + i * kLanes) - Isa::splat(shift)) * Isa::splat(kLog2E);
    }
    Isa::template exp2<false>(x);
    for (int i = 0; i < kCount; ++i) Isa::store(s + i * kLanes, x[i]);
  }

  static SoftmaxRow softmax(float* s, int begin, int end, int cols) {
    mask(s, begin, end, cols);
    Vec high = Isa::load(s);
    for (int j = kLanes; j < cols; j += kLanes) high = Isa::max(high, Isa::load(s + j));
    const float maximum = Isa::reduce_max(high);
    exponentials(s, cols, maximum);
    Vec total = Isa::splat(0.0f);
    for (int j = 0; j < cols; j += kLanes) total = total + Isa::load(s + j);
    const float sum = Isa::reduce_add(total);
    const Vec inverse = Isa::splat(1.0f / sum);
    for (int j = 0; j < cols; j += kLanes) Isa::store(s + j, Isa::load(s + j) * inverse);
    return {maximum, sum};
  }

  static void probabilities(float* s, int begin, int end, int cols, float lse) {
    mask(s, begin, end, cols);
    exponentials(s, cols, lse);
  }

  static float dot(const float* a, const float* b, int count) {
    Vec sum = Isa::splat(0.0f);
    for (int i = 0; i < count; ++i) {
      sum = Math::multiply_add(Isa::splat(a[i]), Isa::splat(b[i]), sum);
    }
    return Isa::first(sum);
  }

  static void score_gradient(const float* p, float* dp, int cols, float delta) {
    for (int j = 0; j < cols; j += kLanes) {
      Isa::store(dp + j, Isa::load(p + j) * (Isa::load(dp + j) - Isa::splat(delta)));
    }
  }
};

template <class Math>
constexpr MatrixKernels make_matrix_kernels() {
  return {.lanes = Math::Isa::kLanes,
          .widen = Pack<Math>::rows_flat,
          .narrow_row = Math::Isa::write_row,
          .pack_columns = Pack<Math>::rows_as_columns,
          .pack_steps = Pack<Math>::rows_as_steps,
          .product = Product<Math>::run,
          .softmax = Matrix<Math>::softmax,
          .probabilities = Matrix<Math>::probabilities,
          .dot = Matrix<Math>::dot,
          .score_gradient = Matrix<Math>::score_gradient,
          .kept = SimdDropout<typename Math::Isa>::kept_of};
}

const MatrixKernels& portable_matrix();
const MatrixKernels& avx2_matrix();
const MatrixKernels& avx512_matrix();

}  // namespace dfa::cpu
