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

// Owns uninitialised, 64-byte aligned bytes. Throws OutOfMemory.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    data_ = ::operator new (align_up(bytes), std::align_val_t{kAlignment}, std::nothrow);
    if (data_ == nullptr) {
      throw OutOfMemory("cannot allocate " + std::to_string(bytes) + " bytes of host memory");
    }
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{kAlignment});
  }

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
