#pragma once

#include <cstdint>

// How the copy engine of compute capability 9.0 is told of a tensor.
namespace dfa::gpu {

enum class Half { fp16, bf16 };

// Four dimensions of 16-bit elements, the contiguous one first.
struct TiledTensor {
  const void* address = nullptr;  // 16-byte aligned
  Half element = Half::bf16;
  std::uint64_t sizes[4] = {};
  std::uint64_t strides[3] = {};     // of the other three, in bytes, multiples of 16
  std::uint32_t box_columns = 0;     // one copy moves this many of the first dimension, 128 bytes
  std::uint32_t box_rows = 0;        // of the second
  std::uint32_t box_planes = 1;      // and of the third
  std::uint64_t bytes_in_front = 0;  // by which the map begins before the tensor's first element
};

inline constexpr int kTensorMapBytes = 128;

// Writes the driver's description, kTensorMapBytes, with the 128-byte swizzle
// and zeros for what a box covers outside. Queues nothing; wants a current context (Scope). Throws
// DriverError when the driver refuses a size or stride.
void encode(const TiledTensor& tensor, void* map);

}  // namespace dfa::gpu
