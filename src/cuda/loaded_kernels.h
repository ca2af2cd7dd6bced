#pragma once

#include <string>

#include "gpu/kernel.h"
#include "kernels/launch.h"

namespace dfa::cuda {

// The kernel of a launch on a device, allowed the shared memory it asks for. Compiled or read from
// the store the first time; stays loaded for the life of the process. Looks it up by text: keep the
// result, do not ask per launch.
gpu::Kernel loaded_kernel(const gpu::Device& device, const KernelLaunch& launch);

// What compiling that kernel warned of; empty too where it is not loaded.
std::string loaded_warning(const gpu::Device& device, const KernelLaunch& launch);

gpu::Launch shape_of(const KernelLaunch& launch);

// Both.
struct LoadedLaunch {
  gpu::Kernel kernel;
  gpu::Launch shape;
};
LoadedLaunch loaded_launch(const gpu::Device& device, const KernelLaunch& launch);

}  // namespace dfa::cuda
