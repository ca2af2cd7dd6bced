#include "cuda/hopper_tensor.h"

#include <utility>

#include "kernels/schedule/seqlen_info.h"
#include "spec/config.h"

namespace dfa::cuda {

gpu::TiledTensor hopper_tensor(const Problem& p, const Strides& s, std::int64_t heads,
                               std::int64_t rows, std::int64_t columns, int box_rows) {
  // Where there is one of a dimension its stride is never used, but has to be legal.
  const auto bytes = [&](std::int64_t stride, std::int64_t size) {
    return static_cast<std::uint64_t>(
        2 * (size == 1 ? round_up(static_cast<int>(columns), 8) : stride));
  };
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  return {.element = p.dtype == DType::fp16 ? gpu::Half::fp16 : gpu::Half::bf16,
          .sizes = {size(columns), size(rows), size(heads), size(p.b)},
          .strides = {bytes(s.row, rows), bytes(s.head, heads), bytes(s.batch, p.b)},
          .box_columns = 64,
          .box_rows = static_cast<std::uint32_t>(box_rows)};
}

gpu::TiledTensor packed_hopper_tensor(const Problem& p, const Strides& s, std::int64_t heads,
                                      std::int64_t rows, std::int64_t columns, int box_rows,
                                      int packed) {
  gpu::TiledTensor tensor = hopper_tensor(p, s, heads, rows, columns, box_rows);
  if (packed == 1) return tensor;
  std::swap(tensor.sizes[1], tensor.sizes[2]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  tensor.box_rows = static_cast<std::uint32_t>(packed);
  tensor.box_planes = static_cast<std::uint32_t>(box_rows / packed);
  return tensor;
}

gpu::TiledTensor sequences_hopper_tensor(const Problem& p, const Strides& s, std::int64_t heads,
                                         std::int64_t rows, std::int64_t columns, int box_rows) {
  static_assert(kBoxOrigin == gpu::kFifthCoordinate);
  gpu::TiledTensor tensor = hopper_tensor(p, s, heads, rows, columns, box_rows);
  tensor.strides[0] = static_cast<std::uint64_t>(2 * s.row);  // also where there is one row
  tensor.strides[2] = tensor.strides[0];
  tensor.sizes[1] = kBoxOrigin;
  tensor.sizes[3] = static_cast<std::uint64_t>(rows) + 1;
  tensor.has_fifth = true;
  return tensor;
}

void encode(gpu::TiledTensor tensor, const void* address, TensorMap& map) {
  static_assert(sizeof(TensorMap) == gpu::kTensorMapBytes);
  tensor.address = address;
  gpu::encode(tensor, &map);
}

}  // namespace dfa::cuda
