#include "cpu/standard_operands.h"

#include <algorithm>

namespace dfa::cpu {

const MatrixKernels& matrix_of(Target target) {
  switch (target) {
    case Target::cpu_portable: return portable_matrix();
    case Target::cpu_avx2: return avx2_matrix();
    case Target::cpu_avx512:
    case Target::cpu_amx: return avx512_matrix();
    case Target::cuda_sm75:
    case Target::cuda_sm80:
    case Target::cuda_sm90: break;
  }
  return portable_matrix();
}

PackedTensor::PackedTensor(const MatrixKernels& kernels, Kind kind, std::int64_t heads,
                           std::int64_t s, int dim, Arena& arena)
    : kernels_(&kernels), kind_(kind), s_(s), dim_(dim) {
  head_floats_ = blocks() * kBlock * padded_dim();
  data_ = reinterpret_cast<float*>(
      arena.take(static_cast<std::size_t>(heads * head_floats_) * sizeof(float)));
}

int PackedTensor::rows_of(std::int64_t block) const {
  return static_cast<int>(std::min<std::int64_t>(kBlock, s_ - block * kBlock));
}

int PackedTensor::height(std::int64_t block) const {
  return (rows_of(block) + kernels_->lanes - 1) / kernels_->lanes * kernels_->lanes;
}

int PackedTensor::padded_dim() const {
  return (dim_ + kernels_->lanes - 1) / kernels_->lanes * kernels_->lanes;
}

float* PackedTensor::at(std::int64_t head, std::int64_t block) const {
  return data_ + head * head_floats_ + block * kBlock * padded_dim();
}

void PackedTensor::pack(std::int64_t head, std::int64_t block, DType type,
                        const std::byte* first_row, std::int64_t row_stride) {
  const std::ptrdiff_t row_bytes = row_stride * bytes_of(type);
  const Rows rows{type, first_row + block * kBlock * row_bytes, row_bytes, rows_of(block), dim_};
  (kind_ == Kind::columns ? kernels_->pack_columns : kernels_->pack_steps)(rows, height(block),
                                                                           at(head, block));
}

RightOperand PackedTensor::operand(std::int64_t head, std::int64_t block) const {
  if (kind_ == Kind::columns) return {at(head, block), height(block), dim_, true};
  return {at(head, block), padded_dim(), height(block), true};
}

}  // namespace dfa::cpu
