#pragma once

#include <cstddef>
#include <cstdint>

// The one matrix product of the vector engines: C += A B, fp32 sums in registers. A is read element
// by element and broadcast, so any strides will do, transposes included; B is read in vectors along
// its columns. A `word` is what one lane multiplies: one fp32, or a pair of bf16 that are
// neighbours along the sum. Math says which, on which instruction set.
//
// Everything here is a template on a type of the including file's unnamed namespace, so that no
// code compiled for one instruction set can be linked into another.
namespace dfa::cpu {

struct LeftOperand {
  const float* data;
  std::ptrdiff_t row;   // words from one row of C to the next
  std::ptrdiff_t step;  // words from one step of the sum to the next
};

// Columns come in panels of the kernel's width, one after the other in each step of the sum
// (`panels` false: plain rows of `cols` words) or each for itself. The last one may be narrower.
struct RightOperand {
  const float* data;
  int cols;
  int steps;
  bool panels;
};

struct Sums {
  float* data;
  std::ptrdiff_t row;
  bool add;  // to what is there; else overwrite
};

template <class Math>
struct Product {
  using Isa = typename Math::Isa;
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kRows = Isa::kBlockRows;  // rows of C held in registers
  static constexpr int kVecs = Isa::kBlockVecs;  // vectors of each of those rows
  static constexpr int kWidth = kVecs * kLanes;  // columns of a panel

  // C is rows x cols, the sum has `steps` words: at most what the operands have. cols is a multiple
  // of the vector length. A panel of B stays in the first-level cache while the rows of A go by.
  static void run(LeftOperand a, RightOperand b, Sums c, int rows, int cols, int steps) {
    for (int col = 0; col < cols; col += kWidth) {
      const int width = least(b.cols - col, kWidth), used = least(cols - col, kWidth);
      const float* panel = b.data + (b.panels ? 1LL * col * b.steps : col);
      for (int row = 0; row < rows; row += kRows) {
        const Block block{
            a.data + row * a.row,       a.row, a.step, panel, b.panels ? width : b.cols,
            c.data + row * c.row + col, c.row, steps,  c.add};
        run_vecs<kVecs>(block, least(rows - row, kRows), used / kLanes);
      }
    }
  }

 private:
  static int least(int a, int b) { return a < b ? a : b; }

  struct Block {
    const float* a;
    std::ptrdiff_t a_row, a_step;
    const float* b;
    std::ptrdiff_t b_step;
    float* c;
    std::ptrdiff_t c_row;
    int steps;
    bool add;
  };

  // From run-time block sizes to the kernel compiled for them.
  template <int vecs>
  static void run_vecs(const Block& block, int rows, int count) {
    if constexpr (vecs > 1) {
      if (count != vecs) return run_vecs<vecs - 1>(block, rows, count);
    }
    run_rows<kRows, vecs>(block, rows);
  }

  template <int rows, int vecs>
  static void run_rows(const Block& block, int count) {
    if constexpr (rows > 1) {
      if (count != rows) return run_rows<rows - 1, vecs>(block, count);
    }
    kernel<rows, vecs>(block);
  }

  template <int rows, int vecs>
  [[gnu::noinline]] static void kernel(const Block& block) {
    const float* a = block.a;
    const float* b = block.b;
    float* c = block.c;
    const std::ptrdiff_t a_row = block.a_row, a_step = block.a_step, b_step = block.b_step;
    const std::ptrdiff_t c_row = block.c_row;
    const bool add = block.add;
    // Unrolled from the start, or the compiler keeps the sums in memory before and after the loop.
    Vec sum[rows][vecs];
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < vecs; ++n) sum[m][n] = Isa::splat(0.0f);
    }
    for (int step = block.steps; step > 0; --step) {
      Vec right[vecs];
#pragma GCC unroll 8
      for (int n = 0; n < vecs; ++n) right[n] = Isa::load(b + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < rows; ++m) {
        const Vec left = Isa::broadcast(a + m * a_row);
#pragma GCC unroll 8
        for (int n = 0; n < vecs; ++n) sum[m][n] = Math::multiply_add(left, right[n], sum[m][n]);
      }
      a += a_step;
      b += b_step;
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < vecs; ++n) {
        float* at = c + m * c_row + n * kLanes;
        Isa::store(at, add ? Isa::load(at) + sum[m][n] : sum[m][n]);
      }
    }
  }
};

}  // namespace dfa::cpu
