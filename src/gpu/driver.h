#pragma once

#include <cuda.h>

#include <string>

#include "base/shared_library.h"
#include "dfa/error.h"

// The driver's functions. For the files of src/gpu alone: the other headers of this folder keep
// cuda.h away from their readers.
namespace dfa::gpu {

// Every driver function we call, by the name that cuGetProcAddress takes.
#define DFA_DRIVER_FUNCTIONS(X)                  \
  X(cuInit)                                      \
  X(cuDriverGetVersion)                          \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuDeviceGetCount)                            \
  X(cuDeviceGet)                                 \
  X(cuDeviceGetName)                             \
  X(cuDeviceGetAttribute)                        \
  X(cuDeviceTotalMem)                            \
  X(cuDeviceGetPCIBusId)                         \
  X(cuDevicePrimaryCtxRetain)                    \
  X(cuCtxGetCurrent)                             \
  X(cuCtxGetDevice)                              \
  X(cuCtxPushCurrent)                            \
  X(cuCtxPopCurrent)                             \
  X(cuCtxSynchronize)                            \
  X(cuPointerGetAttributes)                      \
  X(cuMemGetInfo)                                \
  X(cuMemAlloc)                                  \
  X(cuMemFree)                                   \
  X(cuMemcpyHtoDAsync)                           \
  X(cuMemcpyDtoHAsync)                           \
  X(cuMemcpyDtoDAsync)                           \
  X(cuMemsetD8Async)                             \
  X(cuStreamCreate)                              \
  X(cuStreamDestroy)                             \
  X(cuStreamSynchronize)                         \
  X(cuStreamWaitEvent)                           \
  X(cuStreamIsCapturing)                         \
  X(cuStreamBeginCapture)                        \
  X(cuStreamEndCapture)                          \
  X(cuEventCreate)                               \
  X(cuEventDestroy)                              \
  X(cuEventRecord)                               \
  X(cuEventQuery)                                \
  X(cuEventSynchronize)                          \
  X(cuEventElapsedTime)                          \
  X(cuLibraryLoadData)                           \
  X(cuLibraryUnload)                             \
  X(cuLibraryGetKernel)                          \
  X(cuKernelGetAttribute)                        \
  X(cuKernelSetAttribute)                        \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuLaunchKernelEx)                            \
  X(cuTensorMapEncodeTiled)                      \
  X(cuGraphInstantiateWithFlags)                 \
  X(cuGraphLaunch)                               \
  X(cuGraphExecDestroy)                          \
  X(cuGraphDestroy)

// And those that older drivers lack, by the version of CUDA that has them: null there.
#define DFA_NEWER_DRIVER_FUNCTIONS(X) X(cuCtxGetDevResource, 12040)

// Filled by open_driver. (cuda.h renames some functions to a newer version, cuMemAlloc to
// cuMemAlloc_v2; the members are renamed with them.)
struct Driver {
  SharedLibrary library;
  int version = 0;  // 13000 is CUDA 13.0
#define DFA_MEMBER(name) decltype(&::name) name = nullptr;
  DFA_DRIVER_FUNCTIONS(DFA_MEMBER)
#undef DFA_MEMBER
#define DFA_NEWER_MEMBER(name, since) decltype(&::name) name = nullptr;
  DFA_NEWER_DRIVER_FUNCTIONS(DFA_NEWER_MEMBER)
#undef DFA_NEWER_MEMBER
};

// Loads the driver from the library of this name and starts it. No, with the reason, when there is
// no such library, when it is too old or has no device. Never throws.
Verdict open_driver(const std::string& library_name, Driver& driver);

// The process's driver, from DFA_CUDA_DRIVER. Throws Unsupported with available()'s reason.
const Driver& driver();

// Throws what a failed call means: OutOfMemory, Unsupported or DriverError, the message beginning
// with `what`, which names the call and its values.
void check(CUresult result, const std::string& what);

}  // namespace dfa::gpu
