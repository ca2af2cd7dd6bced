#include "cuda/hopper_tensor.h"

#include <utility>

#include "kernels/schedule/seqlen_info.h"
#include "spec/config.h"

namespace dfa::cuda {

namespace {

gpu::MapElement map_element(DType type) {
  if (type == DType::e4m3) return gpu::MapElement::e4m3;
  return type == DType::fp16 ? gpu::MapElement::fp16 : gpu::MapElement::bf16;
}

// Rows of a box are of so many heads, and then of the next row.
gpu::TiledTensor heads_first(gpu::TiledTensor tensor, int packed) {
  if (packed == 1) return tensor;
  std::swap(tensor.sizes[1], tensor.sizes[2]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  tensor.box_planes = tensor.box_rows / static_cast<std::uint32_t>(packed);
  tensor.box_rows = static_cast<std::uint32_t>(packed);
  return tensor;
}

}  // namespace

gpu::TiledTensor hopper_tensor(DType element, std::int64_t b, const Strides& s, std::int64_t heads,
                               std::int64_t rows, std::int64_t columns, int box_rows) {
  const int element_bytes = bytes_of(element);
  // Where there is one of a dimension its stride is never used, but has to be legal.
  const auto bytes = [&](std::int64_t stride, std::int64_t size) {
    return static_cast<std::uint64_t>(size == 1
                                          ? round_up(element_bytes * static_cast<int>(columns), 16)
                                          : element_bytes * stride);
  };
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  return {.element = map_element(element),
          .sizes = {size(columns), size(rows), size(heads), size(b)},
          .strides = {bytes(s.row, rows), bytes(s.head, heads), bytes(s.batch, b)},
          .box_columns = static_cast<std::uint32_t>(128 / element_bytes),
          .box_rows = static_cast<std::uint32_t>(box_rows)};
}

gpu::TiledTensor packed_hopper_tensor(DType element, std::int64_t b, const Strides& s,
                                      std::int64_t heads, std::int64_t rows, std::int64_t columns,
                                      int box_rows, int packed) {
  return heads_first(hopper_tensor(element, b, s, heads, rows, columns, box_rows), packed);
}

gpu::TiledTensor sequences_hopper_tensor(DType element, std::int64_t b, const Strides& s,
                                         std::int64_t heads, std::int64_t rows,
                                         std::int64_t columns, int box_rows, int packed) {
  static_assert(kBoxOrigin == gpu::kFifthCoordinate);
  gpu::TiledTensor tensor = hopper_tensor(element, b, s, heads, rows, columns, box_rows);
  tensor.strides[0] =
      static_cast<std::uint64_t>(bytes_of(element) * s.row);  // also where there is one row
  tensor.strides[2] = tensor.strides[0];
  tensor.sizes[1] = kBoxOrigin;
  tensor.sizes[3] = static_cast<std::uint64_t>(rows) + 1;
  tensor.has_fifth = true;
  return heads_first(tensor, packed);
}

std::int64_t page_step(std::int64_t pages, const Strides& s) {
  return pages == 1 ? 0 : s.batch / s.row;
}

gpu::TiledTensor paged_hopper_tensor(DType element, std::int64_t pages, const Strides& s,
                                     std::int64_t heads, std::int64_t page_rows,
                                     std::int64_t columns, int box_rows) {
  const std::int64_t rows = (pages - 1) * page_step(pages, s) + page_rows;
  return sequences_hopper_tensor(element, 1, s, heads, rows, columns, box_rows);
}

void encode(gpu::TiledTensor tensor, const void* address, TensorMap& map) {
  static_assert(sizeof(TensorMap) == gpu::kTensorMapBytes);
  tensor.address = address;
  gpu::encode(tensor, &map);
}

}  // namespace dfa::cuda
