#pragma once

namespace dfa {

// Element type of q, k, v, o and their gradients. lse and delta are always fp32.
// tf32 is stored as fp32; its products keep 10 mantissa bits. Accumulation is fp32 throughout.
enum class DType : int { fp32, tf32, fp16, bf16, fp8 };

constexpr int bytes_of(DType type) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: return 4;
    case DType::fp16:
    case DType::bf16: return 2;
    case DType::fp8: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::fp32: return "fp32";
    case DType::tf32: return "tf32";
    case DType::fp16: return "fp16";
    case DType::bf16: return "bf16";
    case DType::fp8: return "fp8";
  }
  return "?";
}

}  // namespace dfa
