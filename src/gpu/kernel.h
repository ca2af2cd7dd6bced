#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "gpu/device.h"
#include "gpu/stream.h"

struct CUkern_st;

namespace dfa::gpu {

// What the driver knows of a kernel on a device.
struct KernelFacts {
  int registers = 0;          // per thread
  int local_bytes = 0;        // per thread: spills and stack
  int static_smem_bytes = 0;  // per block
  int max_threads = 0;        // per block
};

class Kernel;

// Machine code loaded from a cubin, on every device it fits. Kernels keep it loaded.
class Library {
 public:
  // Throws Unsupported when the cubin is for another architecture than `device` or damaged.
  Library(const Device& device, std::span<const char> cubin);

  // By its mangled ("lowered") name. Throws InvalidArgument when the cubin has no such kernel.
  Kernel kernel(const std::string& lowered_name) const;

 private:
  struct Loaded;
  std::shared_ptr<const Loaded> loaded_;
};

// One kernel on one device. A value: copies share the code, which stays loaded while any lives.
// Thread-safe.
class Kernel {
 public:
  const KernelFacts& facts() const { return facts_; }
  const Device& device() const { return *device_; }

  // Lets launches use up to `bytes` of dynamic shared memory. Needed once for more than 48 KiB;
  // more than the device has is InvalidArgument.
  void allow_smem(int bytes) const;

  // Blocks of this shape that one SM holds at once; 0 when not even one fits.
  int blocks_per_sm(int threads, int smem_bytes) const;

  CUkern_st* handle() const { return handle_; }

 private:
  friend class Library;
  std::shared_ptr<const void> library_;
  const Device* device_ = nullptr;
  CUkern_st* handle_ = nullptr;
  KernelFacts facts_;
};

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct Launch {
  Dim3 grid{};
  Dim3 block{};
  int smem_bytes = 0;  // dynamic; see Kernel::allow_smem
  Dim3 cluster{};      // blocks of a cluster, from compute capability 9.0 on; {1, 1, 1}: none
  // Programmatic dependent launch: the kernel may start before the one ahead of it on the stream
  // has ended, and must itself wait (griddepcontrol.wait) before it reads that one's results or
  // writes. Left out where the driver is older than CUDA 12.3, whose graphs have no such launches.
  bool overlaps_previous = false;
};

// Queues the kernel; `arguments` points at one value per kernel parameter, copied before the call
// returns. Throws DriverError when the shape is wrong, and reports here errors of earlier work.
void launch(const Kernel& kernel, const Launch& shape, const Stream& stream,
            std::span<void* const> arguments);

// A kernel whose one parameter is a struct, `__grid_constant__ const Arguments`.
template <class Arguments>
void launch(const Kernel& kernel, const Launch& shape, const Stream& stream,
            const Arguments& arguments) requires std::is_trivially_copyable_v<Arguments> &&
    std::is_class_v<Arguments> {
  static_assert(sizeof(Arguments) <= 4096, "kernel parameters are at most 4 KiB everywhere");
  void* const pointer = const_cast<Arguments*>(&arguments);  // the driver only reads it
  launch(kernel, shape, stream, std::span<void* const>(&pointer, 1));
}

}  // namespace dfa::gpu
