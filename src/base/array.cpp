#include "base/array.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float16.h"

namespace dfa {
namespace {

template <typename T>
T load(const std::string& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

const char* name_of(ArrayType type) {
  switch (type) {
    case ArrayType::e4m3: return "e4m3";
    case ArrayType::fp16: return "fp16";
    case ArrayType::bf16: return "bf16";
    case ArrayType::fp32: return "fp32";
    case ArrayType::fp64: return "fp64";
  }
  return "?";
}

std::int64_t Array::count() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

double Array::at(std::int64_t index) const {
  const std::size_t offset = data_begin + static_cast<std::size_t>(index) * bytes_of(type);
  switch (type) {
    case ArrayType::e4m3: return to_float(load<e4m3>(bytes, offset));
    case ArrayType::fp16: return to_float(load<fp16>(bytes, offset));
    case ArrayType::bf16: return to_float(load<bf16>(bytes, offset));
    case ArrayType::fp32: return load<float>(bytes, offset);
    case ArrayType::fp64: return load<double>(bytes, offset);
  }
  return 0;
}

std::size_t array_bytes(ArrayType type, const std::vector<std::int64_t>& shape,
                        const std::string& place) {
  constexpr std::uint64_t kLimit = 1ULL << 62;
  std::uint64_t total = bytes_of(type);
  for (const std::int64_t size : shape) {
    const auto factor = static_cast<std::uint64_t>(size);
    if (size < 0 || (factor != 0 && total > kLimit / factor)) {
      throw InvalidArgument(place + ": shape " + shape_text(shape) +
                            " is not possible; sizes are 0 or more and at most 2^62 bytes in all");
    }
    total *= factor;
  }
  return total;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? "," : "") + std::to_string(size);
  }
  return text + ")";
}

float narrow_to_odd(double value) {
  if (!std::isfinite(value)) return static_cast<float>(value);
  if (std::abs(value) > std::numeric_limits<float>::max()) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value));
  }
  float near = static_cast<float>(value);
  if (static_cast<double>(near) == value) return near;
  if (std::abs(static_cast<double>(near)) > std::abs(value)) near = std::nextafter(near, 0.0f);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(near) | 1u);
}

}  // namespace dfa
