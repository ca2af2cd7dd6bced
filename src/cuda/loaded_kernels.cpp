#include "cuda/loaded_kernels.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/request.h"
#include "cuda/store.h"

namespace dfa::cuda {
namespace {

struct LoadedKernel {
  gpu::Kernel kernel;
  std::string warning;  // of the compiler
};

using Key = std::pair<int, std::string>;  // device, and text ahead of the source with the entry

Key key_of(const gpu::Device& device, const KernelLaunch& launch) {
  return {device.facts().index, launch.preamble + launch.entry};
}

struct LoadedKernels {
  std::mutex mutex;
  std::map<Key, LoadedKernel> kernels;
};

// Never destroyed: the driver may be gone before static objects are.
LoadedKernels& loaded() {
  static auto* const kernels = new LoadedKernels;
  return *kernels;
}

}  // namespace

gpu::Kernel loaded_kernel(const gpu::Device& device, const KernelLaunch& launch) {
  const std::lock_guard lock(loaded().mutex);
  const Key key = key_of(device, launch);
  auto& kernels = loaded().kernels;
  if (const auto found = kernels.find(key); found != kernels.end()) return found->second.kernel;
  const StoredKernel stored =
      kernel_store().get(request_of(launch, device.facts().arch()), gpu::driver_version());
  const gpu::Library library(device, stored.code->cubin);
  const gpu::Kernel kernel = library.kernel(stored.code->lowered_name);
  kernel.allow_smem(static_cast<int>(launch.smem_bytes));
  kernels.emplace(key, LoadedKernel{kernel, stored.code->warning});
  return kernel;
}

std::string loaded_warning(const gpu::Device& device, const KernelLaunch& launch) {
  const std::lock_guard lock(loaded().mutex);
  const auto found = loaded().kernels.find(key_of(device, launch));
  return found == loaded().kernels.end() ? "" : found->second.warning;
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
