#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "dfa/error.h"

struct CUctx_st;

// The CUDA driver behind plain values and thin owners. It is loaded at run time, so every program
// starts without it. Each call below makes its device's primary context current for its own
// duration and puts the caller's back. Any call may throw: Unsupported (no driver, no device, no
// code for this architecture), OutOfMemory (the process can go on), DriverError (gpu/error.h).
namespace dfa::gpu {

// Is there a driver, recent enough, with a device? Never throws; the same answer every time.
Verdict available();

// Version of the CUDA interface the driver offers: 13000 is CUDA 13.0.
int driver_version();

// What never changes about a device.
struct DeviceFacts {
  int index = 0;                 // the driver's, as CUDA_VISIBLE_DEVICES orders it
  std::string name{};            // "NVIDIA H200"
  std::string pci_id{};          // "0000:3b:00.0", lower case; NVML's name for it is found by this
  int capability = 0;            // 90 is compute capability 9.0
  int sm_count = 0;              // streaming multiprocessors
  int clock_khz = 0;             // highest clock of an SM
  int smem_per_block_bytes = 0;  // shared memory of a block after opting in
  int smem_per_sm_bytes = 0;
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;

  // Architecture to compile for: "sm_80", and from 9.0 with that architecture's own instructions,
  // "sm_90a".
  std::string arch() const;
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

// One device and its primary context, the one that PyTorch and the CUDA runtime use. It is retained
// by the first Scope, for the life of the process: with it NVML lists the process among those on
// the device, which one that only asks for facts is not.
class Device {
 public:
  static int count();  // at least 1; throws Unsupported where available() says no

  // Throws InvalidArgument when there is no device of this index. The reference stays valid.
  static const Device& get(int index = 0);

  // Of the context that is current for the calling thread, as frameworks set it; 0 without one.
  static int current_index();

  const DeviceFacts& facts() const { return facts_; }

  // Multiprocessors of the context that is current for the calling thread where it is a part of the
  // device (a green context); all of them otherwise.
  int usable_sms() const;

  MemoryInfo memory() const;

  // Is it memory of this device? No for memory of the host, of another device or unknown.
  bool holds(const void* pointer) const;

  void synchronize() const;  // waits for all work of the context

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

 private:
  friend class Scope;
  friend struct DeviceTable;
  Device() = default;

  CUctx_st* context() const {
    CUctx_st* const there = context_.load(std::memory_order_acquire);
    return there != nullptr ? there : retain();
  }
  int sms_of(CUctx_st* current) const;  // of the calling thread
  CUctx_st* retain() const;             // one that fails is tried again at the next use

  DeviceFacts facts_;
  mutable std::atomic<CUctx_st*> context_{nullptr};
};

// Makes the device's context current for the calling thread until the end of the block; a part of
// the device that is current stays so, as its default stream is another than the device's.
class Scope {
 public:
  explicit Scope(const Device& device);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  bool pushed_;
};

}  // namespace dfa::gpu
