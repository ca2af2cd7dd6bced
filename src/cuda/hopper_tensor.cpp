#include "cuda/hopper_tensor.h"

#include <utility>

#include "kernels/schedule/seqlen_info.h"
#include "kernels/tile/panel.h"
#include "spec/config.h"

namespace dfa::cuda {

namespace {

gpu::MapElement map_element(DType type) {
  if (type == DType::e4m3) return gpu::MapElement::e4m3;
  return type == DType::fp16 ? gpu::MapElement::fp16 : gpu::MapElement::bf16;
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
  gpu::TiledTensor tensor = hopper_tensor(element, b, s, heads, rows, columns, box_rows);
  if (packed == 1) return tensor;
  std::swap(tensor.sizes[1], tensor.sizes[2]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  tensor.box_rows = static_cast<std::uint32_t>(packed);
  tensor.box_planes = static_cast<std::uint32_t>(box_rows / packed);
  return tensor;
}

gpu::TiledTensor sequences_hopper_tensor(DType element, std::int64_t b, const Strides& s,
                                         std::int64_t heads, std::int64_t rows,
                                         std::int64_t columns, int box_rows) {
  static_assert(kBoxOrigin == gpu::kFifthCoordinate);
  gpu::TiledTensor tensor = hopper_tensor(element, b, s, heads, rows, columns, box_rows);
  tensor.strides[0] =
      static_cast<std::uint64_t>(bytes_of(element) * s.row);  // also where there is one row
  tensor.strides[2] = tensor.strides[0];
  tensor.sizes[1] = kBoxOrigin;
  tensor.sizes[3] = static_cast<std::uint64_t>(rows) + 1;
  tensor.has_fifth = true;
  return tensor;
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

std::int64_t head_panels(DType element, const Strides& s, std::int64_t heads) {
  return heads == 1 ? 0 : s.head / panel_columns(element);
}

gpu::TiledTensor eight_rows_hopper_tensor(DType element, std::int64_t pages, const Strides& s,
                                          std::int64_t heads, std::int64_t page_rows,
                                          std::int64_t columns) {
  gpu::TiledTensor tensor = paged_hopper_tensor(element, pages, s, heads, page_rows, columns, 8);
  const auto of_head = static_cast<std::uint64_t>(panels(element, static_cast<int>(columns)));
  const auto to_last = static_cast<std::uint64_t>((heads - 1) * head_panels(element, s, heads));
  tensor.sizes[0] = static_cast<std::uint64_t>(panel_columns(element));
  tensor.sizes[2] = to_last + of_head;
  tensor.strides[1] = kPanelRowBytes;
  tensor.box_planes = static_cast<std::uint32_t>(of_head);
  return tensor;
}

gpu::TiledTensor whole_rows_hopper_tensor(DType element, std::int64_t pages, const Strides& s,
                                          std::int64_t heads, std::int64_t page_rows,
                                          std::int64_t columns, int box_rows) {
  gpu::TiledTensor tensor = eight_rows_hopper_tensor(element, pages, s, heads, page_rows, columns);
  tensor.sizes[1] = 8;
  tensor.sizes[3] = (tensor.sizes[3] - 1) / 8;
  tensor.strides[2] = 8 * tensor.strides[0];
  tensor.box_batches = static_cast<std::uint32_t>(box_rows / 8);
  tensor.has_fifth = false;
  return tensor;
}

void encode(gpu::TiledTensor tensor, const void* address, TensorMap& map) {
  static_assert(sizeof(TensorMap) == gpu::kTensorMapBytes);
  tensor.address = address;
  gpu::encode(tensor, &map);
}

}  // namespace dfa::cuda
