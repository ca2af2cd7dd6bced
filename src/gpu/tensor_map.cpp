#include "gpu/tensor_map.h"

#include <cstring>

#include "gpu/driver.h"

namespace dfa::gpu {

namespace {

// The copy engine does no arithmetic: of 8 bits it need not know which.
CUtensorMapDataType type_of(MapElement element) {
  switch (element) {
    case MapElement::fp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case MapElement::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case MapElement::e4m3: break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

std::uint64_t fifth_stride(const TiledTensor& tensor) {
  // Times 2^30: 2^64 less 2^30 rows.
  return (std::uint64_t{1} << 34) - tensor.strides[2];
}

void encode(const TiledTensor& tensor, void* map) {
  static_assert(sizeof(CUtensorMap) == kTensorMapBytes);
  const cuuint32_t box[5] = {tensor.box_columns, tensor.box_rows, tensor.box_planes, 1, 1};
  constexpr cuuint32_t kEach[5] = {1, 1, 1, 1, 1};
  const cuuint64_t sizes[5] = {tensor.sizes[0], tensor.sizes[1], tensor.sizes[2], tensor.sizes[3],
                               kFifthCoordinate + 1};
  const cuuint64_t strides[4] = {tensor.strides[0], tensor.strides[1], tensor.strides[2],
                                 fifth_stride(tensor)};
  CUtensorMap encoded;  // aligned as the driver's header wants it, which kernels need not be given
  check(driver().cuTensorMapEncodeTiled(
            &encoded, type_of(tensor.element), tensor.has_fifth ? 5 : 4,
            const_cast<void*>(tensor.address), sizes, strides, box, kEach,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  std::memcpy(map, &encoded, sizeof encoded);
}

}  // namespace dfa::gpu
