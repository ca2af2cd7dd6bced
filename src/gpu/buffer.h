#pragma once

#include <cstddef>
#include <functional>

#include "gpu/device.h"
#include "gpu/stream.h"

namespace dfa::gpu {

// Device memory, aligned to at least 256 bytes. bytes 0 gives null. Throws OutOfMemory with the
// bytes asked for and those free; the process goes on. Both wait for nothing on the streams, but
// release() must not come before the work that uses the memory is done.
void* allocate(const Device& device, std::size_t bytes);
void release(const Device& device, void* pointer) noexcept;  // null is fine

// Runs `work`: the most bytes of allocate() that it held at once, on any device and by any thread,
// on top of those held before.
std::size_t growth(const std::function<void()>& work);

// Owner of device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Device& device, std::size_t bytes);
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void reset() noexcept;

  const Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Ordered on the stream; host memory may be used again only after stream.synchronize() (or an
// event after the copy).
void copy_in(const Stream& stream, void* device_memory, const void* host, std::size_t bytes);
void copy_out(const Stream& stream, void* host, const void* device_memory, std::size_t bytes);
void copy(const Stream& stream, void* to, const void* from, std::size_t bytes);  // on the device
void fill(const Stream& stream, void* device_memory, unsigned char value, std::size_t bytes);

}  // namespace dfa::gpu
