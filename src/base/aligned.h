#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <utility>

#include "dfa/error.h"

namespace dfa {

inline constexpr std::size_t kAlignment = 64;  // a cache line, and a 512-bit vector

constexpr std::size_t align_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Uninitialised, 64-byte aligned host memory; 0 bytes give a pointer too. Throws OutOfMemory.
inline void* allocate_aligned(std::size_t bytes) {
  void* data =
      ::operator new (align_up(bytes == 0 ? 1 : bytes), std::align_val_t{kAlignment}, std::nothrow);
  if (data == nullptr) {
    throw OutOfMemory("cannot allocate " + std::to_string(bytes) + " bytes of host memory");
  }
  return data;
}

inline void release_aligned(void* data) noexcept {  // null is fine
  ::operator delete (data, std::align_val_t{kAlignment});
}

// Owns uninitialised, 64-byte aligned bytes. Throws OutOfMemory.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes)
      : data_(bytes == 0 ? nullptr : allocate_aligned(bytes)), bytes_(bytes) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() { release_aligned(data_); }

  void* data() { return data_; }
  const void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace dfa
