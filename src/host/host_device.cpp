#include "host/host_device.h"

#include <cstring>

#include "base/aligned.h"
#include "base/clock.h"
#include "dfa/error.h"

namespace dfa {
namespace {

class HostDevice final : public Device {
 public:
  void* allocate(std::size_t bytes) const override { return allocate_aligned(bytes); }
  void release(void* pointer) const override { release_aligned(pointer); }
  void copy_in(void* device, const void* host, std::size_t bytes) const override {
    std::memcpy(device, host, bytes);
  }
  void copy_out(void* host, const void* device, std::size_t bytes) const override {
    std::memcpy(host, device, bytes);
  }

  std::unique_ptr<Recording> record(const std::function<void(Queue)>&) const override {
    throw Unsupported("the host has no graphs to replay: its calls run when made");
  }

  double time_s(const std::function<void()>& work, Queue) const override {
    const double begin = monotonic_s();
    work();
    return monotonic_s() - begin;
  }

  void synchronize(Queue) const override {}
};

}  // namespace

const Device& host_device() {
  static const HostDevice device;
  return device;
}

}  // namespace dfa
