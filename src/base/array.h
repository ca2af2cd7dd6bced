#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dfa/error.h"

namespace dfa {

// Element types that array files hold.
enum class ArrayType : int { e4m3, fp16, bf16, fp32, fp64 };

constexpr std::size_t bytes_of(ArrayType type) {
  switch (type) {
    case ArrayType::e4m3: return 1;
    case ArrayType::fp16:
    case ArrayType::bf16: return 2;
    case ArrayType::fp32: return 4;
    case ArrayType::fp64: return 8;
  }
  return 0;
}

const char* name_of(ArrayType type);

// A dense array in C order, as a file stored it: `data_begin` is where the elements start in
// `bytes`, which need not be aligned.
struct Array {
  ArrayType type = ArrayType::fp32;
  std::vector<std::int64_t> shape{};
  std::string bytes{};
  std::size_t data_begin = 0;

  std::int64_t count() const;
  double at(std::int64_t index) const;  // exact: fp64 holds every value of the other types
};

// Bytes that an array of this type and shape takes. Throws InvalidArgument, with `place` in front,
// when a size is negative or the product does not fit 2^62.
std::size_t array_bytes(ArrayType type, const std::vector<std::int64_t>& shape,
                        const std::string& place);

// "(2,8,128,64)"
std::string shape_text(const std::vector<std::int64_t>& shape);

// The fp32 value that rounds to the same fp16 or bf16 as `value` does: to odd, so that rounding
// twice is rounding once.
float narrow_to_odd(double value);

}  // namespace dfa
