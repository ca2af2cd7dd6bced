#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/engine.h"
#include "cpu/simd_kernel.h"
#include "dfa/dtype.h"

// From strided rows of any element type to the operands of Product. Rows past the last one and
// columns past the row's end are zero, so that kernels need no tails.
namespace dfa::cpu {

// Rows of one tensor: `count` of them exist.
struct Rows {
  DType type;
  const std::byte* data;
  std::ptrdiff_t row_bytes;
  int count;
  int dim;                 // elements of a row
  RowFactors factors{};    // of what they are widened to
  std::int64_t first = 0;  // the number of the first, of which its factor is
};

template <class Math>
struct Pack {
  using Isa = typename Math::Isa;
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kWidth = Product<Math>::kWidth;
  static constexpr int kMaxDim = 576;      // of a row that is staged whole
  static constexpr int kMaxColumns = 128;  // of rows that are staged side by side: a small stack

  static int padded(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }
  static int words(int dim) { return dim / Math::kPack; }

  // Left operand: [height][stride] words, as the rows are.
  static void rows_flat(const Rows& rows, int height, int stride, float* out) {
    for (int row = 0; row < height; ++row) {
      int used = 0;
      if (row < rows.count) {
        Math::stage_row(rows.type, rows.data + row * rows.row_bytes, rows.dim, out);
        used = words(rows.dim);
        const float factor = factor_of(rows, row);
        if (factor != 1) multiply(out, used, factor);
      }
      for (int i = used; i < stride; ++i) out[i] = 0.0f;
      out += stride;
    }
  }

  // Right operand whose sum runs along a row and whose columns are the rows: q k^T wants k so.
  static void rows_as_columns(const Rows& rows, int height, float* out) {
    const int steps = words(rows.dim);
    for (int panel = 0; panel < height; panel += kWidth) {
      const int width = height - panel < kWidth ? height - panel : kWidth;
      for (int lane = 0; lane < width; lane += kLanes) {
        const Rows lanes = from(rows, panel + lane);
        for (int column = 0; column < rows.dim; column += kMaxColumns) {
          few_rows_as_columns(columns_from(lanes, column), width,
                              out + words(column) * width + lane);
        }
      }
      out += static_cast<std::ptrdiff_t>(width) * steps;
    }
  }

  // Right operand whose sum runs over the rows: P v wants v so. height is a multiple of kPack.
  static void rows_as_steps(const Rows& rows, int height, float* out) {
    alignas(64) float staged[kMaxDim];
    const int steps = height / Math::kPack, cols = padded(rows.dim);
    for (int step = 0; step < steps; ++step) {
      Math::stage_step(from(rows, step * Math::kPack), cols, staged);
      for (int col = 0; col < cols; col += kLanes) {
        const int panel = col / kWidth * kWidth;
        const int width = cols - panel < kWidth ? cols - panel : kWidth;
        Isa::store(out + static_cast<std::ptrdiff_t>(panel) * steps + step * width + col - panel,
                   Isa::load(staged + col));
      }
    }
  }

 private:
  // kLanes rows; a step of the sum is `width` words after the one before.
  static void few_rows_as_columns(const Rows& rows, int width, float* out) {
    alignas(64) float staged[kLanes * kMaxColumns];
    const int steps = words(rows.dim), stride = padded(steps);
    rows_flat(rows, kLanes, stride, staged);
    for (int step = 0; step < steps; step += kLanes) {
      Vec columns[kLanes];
      Isa::transpose(staged + step, stride, columns);
      const int count = steps - step < kLanes ? steps - step : kLanes;
      for (int i = 0; i < count; ++i) Isa::store(out + (step + i) * width, columns[i]);
    }
  }

  static float factor_of(const Rows& rows, int row) {
    const RowFactors& all = rows.factors;
    if (all.values == nullptr) return 1;
    return all.values[all.rows > 0 ? (rows.first + row) / all.rows * all.step : 0];
  }

  // Of words that are fp32, which those of elements of 8 bits are.
  static void multiply(float* out, int count, float factor) {
    for (int i = 0; i < count; ++i) out[i] *= factor;
  }

  static Rows columns_from(const Rows& rows, int first) {
    const int left = rows.dim - first;
    return {rows.type,  rows.data + first * bytes_of(rows.type), rows.row_bytes,
            rows.count, left < kMaxColumns ? left : kMaxColumns, rows.factors,
            rows.first};
  }

  static Rows from(const Rows& rows, int first) {
    const int left = rows.count > first ? rows.count - first : 0;
    return {rows.type,         rows.data + first * rows.row_bytes,
            rows.row_bytes,    left,
            rows.dim,          rows.factors,
            rows.first + first};
  }
};

// Products in fp32, whatever the element type: rows are widened when they are packed.
template <class IsaType>
struct Fp32Math {
  using Isa = IsaType;
  using Vec = typename Isa::Vec;
  static constexpr int kPack = 1;  // elements of a word
  static constexpr bool kShortExp = false;

  static Vec multiply_add(Vec a, Vec b, Vec c) { return Isa::fma(a, b, c); }

  static void stage_row(DType type, const std::byte* row, int count, float* out) {
    Isa::read_row(type, row, count, out);
  }

  static void stage_step(const Rows& rows, int cols, float* out) {
    Pack<Fp32Math>::rows_flat(rows, 1, cols, out);
  }

  static void negate(float* words, std::ptrdiff_t count) {
    for (std::ptrdiff_t i = 0; i < count; ++i) words[i] = -words[i];
  }

  // Vectors of a row from number `index` on become a left operand whose sum runs along the row …
  template <int kCount>
  static void store_along(float* row, int index, const Vec (&x)[kCount]) {
    for (int i = 0; i < kCount; ++i) Isa::store(row + (index + i) * Isa::kLanes, x[i]);
  }
};

}  // namespace dfa::cpu
