#pragma once

#include <cstdint>

// How the copy engine of compute capability 9.0 is told of a tensor.
namespace dfa::gpu {

inline constexpr std::uint64_t kFifthCoordinate = std::uint64_t{1} << 30;

enum class MapElement { fp16, bf16, e4m3 };

// Four dimensions of elements of 16 bits or 8, the contiguous one first, or five: one coordinate of
// the fifth, kFifthCoordinate, takes kFifthCoordinate rows back, as addresses are counted modulo
// 2^64.
struct TiledTensor {
  const void* address = nullptr;  // 16-byte aligned
  MapElement element = MapElement::bf16;
  std::uint64_t sizes[4] = {};
  std::uint64_t strides[3] = {};  // of the other three, in bytes, multiples of 16
  std::uint32_t box_columns = 0;  // one copy moves this many of the first dimension, 128 bytes
  std::uint32_t box_rows = 0;     // of the second
  std::uint32_t box_planes = 1;   // and of the third
  bool has_fifth = false;
};

inline constexpr int kTensorMapBytes = 128;

// The fourth dimension is of the rows, whichever that are. Requires rows of less than 2^34 bytes.
std::uint64_t fifth_stride(const TiledTensor& tensor);

// Writes the driver's description, kTensorMapBytes, with the 128-byte swizzle
// and zeros for what a box covers outside. Queues nothing; wants a current context (Scope). Throws
// DriverError when the driver refuses a size or stride.
void encode(const TiledTensor& tensor, void* map);

}  // namespace dfa::gpu
