#include "gpu/tensor_map.h"

#include <cstring>

#include "gpu/driver.h"

namespace dfa::gpu {

void encode(const TiledTensor& tensor, void* map) {
  static_assert(sizeof(CUtensorMap) == kTensorMapBytes);
  const cuuint32_t box[4] = {tensor.box_columns, tensor.box_rows, tensor.box_planes, 1};
  constexpr cuuint32_t kEach[4] = {1, 1, 1, 1};
  CUtensorMap encoded;  // aligned as the driver's header wants it, which kernels need not be given
  check(driver().cuTensorMapEncodeTiled(
            &encoded,
            tensor.element == Half::fp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                         : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            4, const_cast<void*>(tensor.address), tensor.sizes, tensor.strides, box, kEach,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  std::memcpy(map, &encoded, sizeof encoded);
}

}  // namespace dfa::gpu
