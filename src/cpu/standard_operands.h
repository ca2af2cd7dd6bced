#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/arena.h"
#include "cpu/matrix.h"
#include "dfa/problem.h"
#include "spec/target.h"

namespace dfa::cpu {

const MatrixKernels& matrix_of(Target target);

// One [heads, s, dim] tensor as a right operand, in blocks of kBlock rows that are packed each for
// itself, so that a product can take them one at a time.
class PackedTensor {
 public:
  static constexpr int kBlock = 256;
  enum class Kind { columns, steps };  // A rowsᵀ or A rows

  PackedTensor() = default;
  PackedTensor(const MatrixKernels& kernels, Kind kind, std::int64_t heads, std::int64_t s, int dim,
               Arena& arena);

  // Packs block `block` of head `head`; rows start at `first_row` in memory.
  void pack(std::int64_t head, std::int64_t block, DType type, const std::byte* first_row,
            std::int64_t row_stride);

  std::int64_t blocks() const { return (s_ + kBlock - 1) / kBlock; }
  int rows_of(std::int64_t block) const;
  int padded_dim() const;
  RightOperand operand(std::int64_t head, std::int64_t block) const;

 private:
  float* at(std::int64_t head, std::int64_t block) const;
  int height(std::int64_t block) const;  // rows_of, up to a multiple of the vector

  const MatrixKernels* kernels_ = nullptr;
  Kind kind_ = Kind::columns;
  std::int64_t s_ = 0;
  int dim_ = 0;
  std::int64_t head_floats_ = 0;
  float* data_ = nullptr;
};

}  // namespace dfa::cpu
