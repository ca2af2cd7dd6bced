#include "cuda/loaded_kernels.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/request.h"
#include "cuda/store.h"

namespace dfa::cuda {
namespace {

struct LoadedKernels {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, gpu::Kernel> kernels;  // by device and entry
};

// Never destroyed: the driver may be gone before static objects are.
LoadedKernels& loaded() {
  static auto* const kernels = new LoadedKernels;
  return *kernels;
}

}  // namespace

gpu::Kernel loaded_kernel(const gpu::Device& device, const KernelLaunch& launch) {
  const std::lock_guard lock(loaded().mutex);
  const auto key = std::pair(device.facts().index, launch.entry);
  auto& kernels = loaded().kernels;
  if (const auto found = kernels.find(key); found != kernels.end()) return found->second;
  const StoredKernel stored = kernel_store().get(request_of(launch, device.facts().arch()));
  const gpu::Library library(device, stored.code->cubin);
  const gpu::Kernel kernel = library.kernel(stored.code->lowered_name);
  kernel.allow_smem(static_cast<int>(launch.smem_bytes));
  return kernels.emplace(key, kernel).first->second;
}

gpu::Launch shape_of(const KernelLaunch& launch) {
  return {.grid = {.x = launch.grid},
          .block = {.x = launch.threads},
          .smem_bytes = static_cast<int>(launch.smem_bytes),
          .cluster = {.x = launch.cluster}};
}

LoadedLaunch loaded_launch(const gpu::Device& device, const KernelLaunch& launch) {
  return {loaded_kernel(device, launch), shape_of(launch)};
}

}  // namespace dfa::cuda
