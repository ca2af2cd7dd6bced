#include "gpu/buffer.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "gpu/driver.h"

namespace dfa::gpu {
namespace {

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

std::string of_bytes(const char* call, std::size_t bytes) {
  return std::string(call) + " of " + std::to_string(bytes) + " bytes";
}

// What allocate() has given out and not got back.
class Ledger {
 public:
  void add(const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_[pointer] = bytes;
    now_ += bytes;
    most_ = std::max(most_, now_);
  }

  void remove(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = bytes_.find(pointer);
    if (found == bytes_.end()) return;
    now_ -= found->second;
    bytes_.erase(found);
  }

  std::size_t begin() {
    const std::lock_guard lock(mutex_);
    return most_ = now_;
  }

  std::size_t most() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::size_t> bytes_;
  std::size_t now_ = 0;
  std::size_t most_ = 0;
};

// Never destroyed: static objects may still hold device memory at exit.
Ledger& ledger() {
  static auto* const instance = new Ledger;
  return *instance;
}

}  // namespace

std::size_t growth(const std::function<void()>& work) {
  const std::size_t before = ledger().begin();
  work();
  return ledger().most() - before;
}

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
  void* const pointer = reinterpret_cast<void*>(address);
  ledger().add(pointer, bytes);
  return pointer;
}

void release(const Device& device, void* pointer) noexcept {
  if (pointer == nullptr) return;
  ledger().remove(pointer);
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
