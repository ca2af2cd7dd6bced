#pragma once

namespace dfa {

// Element type of q, k, v and their gradients. lse and delta are always fp32.
// tf32 is stored as fp32; its products keep 10 mantissa bits. Accumulation is fp32 throughout.
// e4m3 is the 8-bit float of 4 exponent and 3 mantissa bits that has no infinity: PyTorch's
// float8_e4m3fn, whose largest number is 448 and whose codes 0x7f and 0xff are NaN.
enum class DType : int { fp32, tf32, fp16, bf16, e4m3 };

inline constexpr DType kDTypes[] = {DType::fp32, DType::tf32, DType::fp16, DType::bf16,
                                    DType::e4m3};

constexpr int bytes_of(DType type) {
  switch (type) {
    case DType::fp32:
    case DType::tf32: return 4;
    case DType::fp16:
    case DType::bf16: return 2;
    case DType::e4m3: return 1;
  }
  return 0;
}

// What o and its gradient are stored as where q, k and v are of this type: here alone, so that
// another type for e4m3's is a change of one line. An o in e4m3 would lose what the sums hold.
constexpr DType output_of(DType type) { return type == DType::e4m3 ? DType::bf16 : type; }

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::fp32: return "fp32";
    case DType::tf32: return "tf32";
    case DType::fp16: return "fp16";
    case DType::bf16: return "bf16";
    case DType::e4m3: return "e4m3";
  }
  return "?";
}

}  // namespace dfa
