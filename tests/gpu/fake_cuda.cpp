#include "gpu/fake_cuda.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "gpu/driver.h"

// The driver's functions as cuda.h declares them, on a state that tests read and write.
namespace {

using dfa::testing::FakeCuda;
using dfa::testing::FakeLaunch;

FakeCuda state;
thread_local std::vector<CUcontext> contexts;

struct Block {
  std::size_t bytes;
  int device;
};
std::map<CUdeviceptr, Block> blocks;
double time_ms = 0;  // a launch takes a quarter of a millisecond

constexpr int kCapability[] = {90, 80, 75};

const CUcontext kGreenContext = reinterpret_cast<CUcontext>(std::uintptr_t{0x900});

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(0x100 + device));
}

int current_device() {
  if (contexts.empty()) return 0;  // a green context's
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts.back()) - 0x100);
}

CUresult fault(const char* call) {
  if (state.lost != CUDA_SUCCESS) return state.lost;
  if (state.failing_call != call) return CUDA_SUCCESS;
  if (state.failure == CUDA_ERROR_ILLEGAL_ADDRESS) state.lost = state.failure;
  return state.failure;
}

// Calls that work on the current context.
CUresult fault_in_context(const char* call) {
  const bool none = contexts.empty() && state.part_sms == 0;
  return none ? CUDA_ERROR_INVALID_CONTEXT : fault(call);
}

}  // namespace

struct CUstream_st {
  bool capturing = false;
  std::vector<FakeLaunch> recorded;
};
struct CUevent_st {
  double time = -1;
};
struct CUkern_st {
  std::string name;
};
struct CUlib_st {
  std::vector<CUkern_st> kernels{{"first"}, {"second"}};
};
struct CUgraph_st {
  std::vector<FakeLaunch> launches;
};
struct CUgraphExec_st {
  std::vector<FakeLaunch> launches;
};

extern "C" {

FakeCuda* fake_cuda() {
  state.context_depth = contexts.size();
  return &state;
}

CUresult cuGetProcAddress_v2(const char* name, void** address, int, cuuint64_t,
                             CUdriverProcAddressQueryResult*) {
  *address = nullptr;
  if (state.missing == name) return CUDA_ERROR_NOT_FOUND;
#define DFA_FIND(function) \
  if (std::strcmp(name, #function) == 0) *address = reinterpret_cast<void*>(&::function);
  DFA_DRIVER_FUNCTIONS(DFA_FIND)
#undef DFA_FIND
#define DFA_FIND_NEWER(function, since) \
  if (std::strcmp(name, #function) == 0) *address = reinterpret_cast<void*>(&::function);
  DFA_NEWER_DRIVER_FUNCTIONS(DFA_FIND_NEWER)
#undef DFA_FIND_NEWER
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuInit(unsigned) { return fault("cuInit"); }

CUresult cuDriverGetVersion(int* version) {
  *version = state.version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "as the test asked";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = state.devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return index < state.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  std::strncpy(name, ("Fake " + std::to_string(kCapability[device])).c_str(),
               static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  std::strncpy(id, device == 0 ? "0000:3B:00.0" : "0000:5E:00.0", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = kCapability[device] / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = kCapability[device] % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  *bytes = state.memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult bad = fault("cuDevicePrimaryCtxRetain")) return bad;
  ++state.contexts;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = !contexts.empty() ? contexts.back() : state.part_sms > 0 ? kGreenContext : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (contexts.empty() && state.part_sms == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_VALUE;
  resource->sm.smCount = context == kGreenContext ? state.part_sms : 132;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  ++state.calls;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  ++state.calls;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return fault_in_context("cuCtxSynchronize"); }

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
  ++state.calls;
  if (const CUresult bad = fault("cuPointerGetAttributes")) return bad;
  const auto block = blocks.upper_bound(address);
  const bool known =
      block != blocks.begin() && address < std::prev(block)->first + std::prev(block)->second.bytes;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<CUmemorytype*>(values[i]) = known ? CU_MEMORYTYPE_DEVICE : CUmemorytype{};
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *static_cast<int*>(values[i]) = known ? std::prev(block)->second.device : -2;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (const CUresult bad = fault_in_context("cuMemGetInfo")) return bad;
  *free_bytes = state.memory_bytes - state.used_bytes;
  *total_bytes = state.memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  if (const CUresult bad = fault_in_context("cuMemAlloc")) return bad;
  if (bytes > state.memory_bytes - state.used_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  blocks[*address] = {bytes, current_device()};
  state.used_bytes += bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto block = blocks.find(address);
  if (block == blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  state.used_bytes -= block->second.bytes;
  std::free(reinterpret_cast<void*>(address));
  blocks.erase(block);
  return state.lost;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
  if (const CUresult bad = fault_in_context("cuMemcpyHtoDAsync")) return bad;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream) {
  if (const CUresult bad = fault_in_context("cuMemcpyDtoHAsync")) return bad;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
  if (const CUresult bad = fault_in_context("cuMemcpyDtoDAsync")) return bad;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream) {
  if (const CUresult bad = fault_in_context("cuMemsetD8Async")) return bad;
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult bad = fault_in_context("cuStreamCreate")) return bad;
  *stream = new CUstream_st;
  ++state.streams;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  delete stream;
  --state.streams;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream) { return fault_in_context("cuStreamSynchronize"); }

CUresult cuStreamWaitEvent(CUstream, CUevent event, unsigned) {
  return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : fault_in_context("cuStreamWaitEvent");
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = stream != nullptr && stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                   : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  if (stream == nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->capturing = true;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  stream->capturing = false;
  *graph = new CUgraph_st{stream->recorded};
  stream->recorded.clear();
  ++state.graphs;
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  if (const CUresult bad = fault_in_context("cuEventCreate")) return bad;
  *event = new CUevent_st;
  ++state.events;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  delete event;
  --state.events;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream) {
  event->time = time_ms;
  return fault_in_context("cuEventRecord");
}

CUresult cuEventQuery(CUevent) { return fault_in_context("cuEventQuery"); }

CUresult cuEventSynchronize(CUevent) { return fault_in_context("cuEventSynchronize"); }

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  if (start->time < 0 || stop->time < 0) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = static_cast<float>(stop->time - start->time);
  return fault_in_context("cuEventElapsedTime");
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  if (const CUresult bad = fault_in_context("cuLibraryLoadData")) return bad;
  const std::string arch = "sm_" + std::to_string(kCapability[current_device()]);
  if (std::strstr(static_cast<const char*>(code), arch.c_str()) == nullptr) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  *library = new CUlib_st;
  const std::string_view text(static_cast<const char*>(code));
  if (const auto at = text.find("_Z"); at != text.npos) {
    (*library)->kernels.push_back({std::string(text.substr(at))});
  }
  ++state.libraries;
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  delete library;
  --state.libraries;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  for (CUkern_st& one : library->kernels) {
    if (one.name != name) continue;
    *kernel = &one;
    return fault_in_context("cuLibraryGetKernel");
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 168; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 8; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 384; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel, CUdevice) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  state.most_smem = value;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks_per_sm, CUfunction, int threads,
                                                     std::size_t smem_bytes) {
  *blocks_per_sm = std::min(2048 / threads, static_cast<int>(233472 / (smem_bytes + 1024)));
  return fault_in_context("cuOccupancyMaxActiveBlocksPerMultiprocessor");
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void**) {
  ++state.calls;
  if (const CUresult bad = fault_in_context("cuLaunchKernelEx")) return bad;
  if (config->blockDimX > 1024) return CUDA_ERROR_INVALID_VALUE;
  FakeLaunch launch;
  launch.kernel = reinterpret_cast<CUkernel>(function)->name;
  launch.config = *config;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    launch.attributes[config->attrs[i].id] = config->attrs[i].value;
  }
  std::memcpy(launch.argument.data(), arguments[0], launch.argument.size());
  const CUstream stream = config->hStream;
  if (stream != nullptr && stream->capturing) {
    stream->recorded.push_back(launch);
  } else {
    state.launches.push_back(launch);
    time_ms += 0.25;
  }
  return CUDA_SUCCESS;
}

// As strict as the driver where a map would not work.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t dimensions,
                                void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  if (const CUresult bad = fault_in_context("cuTensorMapEncodeTiled")) return bad;
  if (reinterpret_cast<std::uintptr_t>(map) % alignof(CUtensorMap) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < dimensions; ++i) {
    if (sizes[i] == 0 || box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    if (i > 0 && (strides[i - 1] == 0 || strides[i - 1] % 16 != 0)) return CUDA_ERROR_INVALID_VALUE;
  }
  map->opaque[0] = reinterpret_cast<std::uintptr_t>(address);
  map->opaque[1] = box[1];
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  if (const CUresult bad = fault_in_context("cuGraphInstantiateWithFlags")) return bad;
  *executable = new CUgraphExec_st{graph->launches};
  ++state.graphs;
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream) {
  for (const FakeLaunch& launch : executable->launches) state.launches.push_back(launch);
  return fault_in_context("cuGraphLaunch");
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  delete executable;
  --state.graphs;
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  --state.graphs;
  return CUDA_SUCCESS;
}

}  // extern "C"
