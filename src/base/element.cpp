#include "base/element.h"

#include <bit>

#include "base/float16.h"
#include "dfa/error.h"

namespace dfa {

float load_element(const void* data, DType type, std::int64_t index) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: return static_cast<const float*>(data)[index];
    case DType::fp16: return to_float(static_cast<const fp16*>(data)[index]);
    case DType::bf16: return to_float(static_cast<const bf16*>(data)[index]);
    case DType::e4m3: return to_float(static_cast<const e4m3*>(data)[index]);
  }
  throw InvalidArgument("load_element: no element type");
}

void store_element(void* data, DType type, std::int64_t index, float value) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: static_cast<float*>(data)[index] = value; return;
    case DType::fp16: static_cast<fp16*>(data)[index] = to_fp16(value); return;
    case DType::bf16: static_cast<bf16*>(data)[index] = to_bf16(value); return;
    case DType::e4m3: static_cast<e4m3*>(data)[index] = to_e4m3(value); return;
  }
  throw InvalidArgument("store_element: no element type");
}

float round_to(DType type, float value) {
  switch (type) {
    case DType::fp32: return value;
    case DType::fp16: return to_float(to_fp16(value));
    case DType::bf16: return to_float(to_bf16(value));
    case DType::tf32: {
      std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
      if ((bits & 0x7f800000u) == 0x7f800000u) return value;
      bits += 0xfffu + ((bits >> 13) & 1u);
      return std::bit_cast<float>(bits & ~0x1fffu);
    }
    case DType::e4m3: return to_float(to_e4m3(value));
  }
  throw InvalidArgument("round_to: no element type");
}

}  // namespace dfa
