#include "gpu/buffer.h"

#include <string>
#include <utility>

#include "gpu/driver.h"

namespace dfa::gpu {
namespace {

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

std::string of_bytes(const char* call, std::size_t bytes) {
  return std::string(call) + " of " + std::to_string(bytes) + " bytes";
}

}  // namespace

void* allocate(const Device& device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const Scope scope(device);
  CUdeviceptr address = 0;
  const CUresult result = driver().cuMemAlloc(&address, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw OutOfMemory("cuda: " + std::to_string(bytes) + " bytes are not to be had on " +
                      device.facts().name +
                      "; free: " + std::to_string(device.memory().free_bytes));
  }
  check(result, of_bytes("cuMemAlloc", bytes));
  return reinterpret_cast<void*>(address);
}

void release(const Device& device, void* pointer) noexcept {
  if (pointer == nullptr) return;
  try {
    const Scope scope(device);
    driver().cuMemFree(address_of(pointer));
  } catch (const Error&) {  // the context is lost, and the memory with it
  }
}

Buffer::Buffer(const Device& device, std::size_t bytes)
    : device_(&device), data_(allocate(device, bytes)), bytes_(bytes) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (data_ != nullptr) release(*device_, data_);
  data_ = nullptr;
  bytes_ = 0;
}

void copy_in(const Stream& stream, void* device_memory, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  const Scope scope(stream.device());
  check(driver().cuMemcpyHtoDAsync(address_of(device_memory), host, bytes, stream.handle()),
        of_bytes("copy to the device", bytes));
}

void copy_out(const Stream& stream, void* host, const void* device_memory, std::size_t bytes) {
  if (bytes == 0) return;
  const Scope scope(stream.device());
  check(driver().cuMemcpyDtoHAsync(host, address_of(device_memory), bytes, stream.handle()),
        of_bytes("copy from the device", bytes));
}

void copy(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Scope scope(stream.device());
  check(driver().cuMemcpyDtoDAsync(address_of(to), address_of(from), bytes, stream.handle()),
        of_bytes("copy on the device", bytes));
}

void fill(const Stream& stream, void* device_memory, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return;
  const Scope scope(stream.device());
  check(driver().cuMemsetD8Async(address_of(device_memory), value, bytes, stream.handle()),
        of_bytes("fill", bytes));
}

}  // namespace dfa::gpu
