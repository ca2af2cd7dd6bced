#pragma once

#include "gpu/device.h"

struct CUstream_st;

namespace dfa::gpu {

class Event;

// An ordered queue of work on a device: our own, or one that somebody else made.
class Stream {
 public:
  // A new stream that does not wait for the legacy default stream. Destroyed with the object,
  // after its work.
  explicit Stream(const Device& device);

  // A stream made elsewhere in the device's primary context, e.g. by PyTorch; it stays its maker's.
  // Null is the legacy default stream.
  static Stream foreign(const Device& device, void* handle);

  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  const Device& device() const { return *device_; }
  CUstream_st* handle() const { return handle_; }

  void synchronize() const;             // waits; throws what the work on it threw
  void wait(const Event& event) const;  // later work starts after the event
  bool capturing() const;               // is a graph being captured from it?

 private:
  Stream(const Device& device, CUstream_st* handle) : device_(&device), handle_(handle) {}

  const Device* device_;
  CUstream_st* handle_ = nullptr;
  bool owned_ = false;
};

}  // namespace dfa::gpu
