#include "gpu/kernel.h"

#include <array>
#include <utility>

#include "gpu/driver.h"

namespace dfa::gpu {
namespace {

constexpr int kRecordsOverlaps = 12030;  // the first driver that takes such launches into a graph

std::string text_of(const Dim3& dim) {
  return std::to_string(dim.x) + "x" + std::to_string(dim.y) + "x" + std::to_string(dim.z);
}

std::string text_of(const Launch& shape) {
  return "launch of grid " + text_of(shape.grid) + ", block " + text_of(shape.block) +
         ", cluster " + text_of(shape.cluster) + ", " + std::to_string(shape.smem_bytes) +
         " bytes of shared memory";
}

bool has_cluster(const Launch& shape) {
  return shape.cluster.x * shape.cluster.y * shape.cluster.z > 1;
}

CUdevice handle_of(const Device& device) {
  CUdevice handle = 0;
  check(driver().cuDeviceGet(&handle, device.facts().index), "cuDeviceGet");
  return handle;
}

// The driver's calls for functions take kernels too.
CUfunction function_of(const Kernel& kernel) {
  return reinterpret_cast<CUfunction>(kernel.handle());
}

KernelFacts read_facts(CUkernel kernel, const Device& device, const std::string& name) {
  const auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    check(driver().cuKernelGetAttribute(&value, which, kernel, handle_of(device)),
          "kernel '" + name + "' on " + device.facts().name);
    return value;
  };
  KernelFacts facts;
  facts.registers = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
  facts.local_bytes = attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  facts.static_smem_bytes = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  facts.max_threads = attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  return facts;
}

}  // namespace

struct Library::Loaded {
  const Device* device = nullptr;
  CUlibrary handle = nullptr;

  ~Loaded() {
    if (handle == nullptr) return;
    try {
      const Scope scope(*device);
      driver().cuLibraryUnload(handle);
    } catch (const Error&) {  // the context is lost, and the code with it
    }
  }
};

Library::Library(const Device& device, std::span<const char> cubin) {
  constexpr std::string_view kElf = "\177ELF";
  if (std::string_view(cubin.data(), cubin.size()).substr(0, kElf.size()) != kElf) {
    throw InvalidArgument("cuda: " + std::to_string(cubin.size()) + " bytes that are no cubin");
  }
  const auto loaded = std::make_shared<Loaded>();
  loaded->device = &device;
  const Scope scope(device);
  check(driver().cuLibraryLoadData(&loaded->handle, cubin.data(), nullptr, nullptr, 0, nullptr,
                                   nullptr, 0),
        "loading code on " + device.facts().name + " (" + device.facts().arch() + ")");
  loaded_ = loaded;
}

Kernel Library::kernel(const std::string& lowered_name) const {
  const Device& device = *loaded_->device;
  const Scope scope(device);
  Kernel kernel;
  const CUresult result =
      driver().cuLibraryGetKernel(&kernel.handle_, loaded_->handle, lowered_name.c_str());
  if (result == CUDA_ERROR_NOT_FOUND) {
    throw InvalidArgument("cuda: the code has no kernel '" + lowered_name + "'");
  }
  check(result, "kernel '" + lowered_name + "'");
  kernel.library_ = loaded_;
  kernel.device_ = &device;
  kernel.facts_ = read_facts(kernel.handle_, device, lowered_name);
  return kernel;
}

void Kernel::allow_smem(int bytes) const {
  const int most = device_->facts().smem_per_block_bytes - facts_.static_smem_bytes;
  if (bytes < 0 || bytes > most) {
    throw InvalidArgument("cuda: " + std::to_string(bytes) +
                          " bytes of dynamic shared memory; accepted on " + device_->facts().name +
                          ": 0 to " + std::to_string(most));
  }
  const Scope scope(*device_);
  check(driver().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes,
                                      handle_, handle_of(*device_)),
        "cuKernelSetAttribute");
}

int Kernel::blocks_per_sm(int threads, int smem_bytes) const {
  const Scope scope(*device_);
  int blocks = 0;
  check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_of(*this), threads,
                                                             static_cast<std::size_t>(smem_bytes)),
        "occupancy of " + std::to_string(threads) + " threads");
  return blocks;
}

void launch(const Kernel& kernel, const Launch& shape, const Stream& stream,
            std::span<void* const> arguments) {
  std::array<CUlaunchAttribute, 2> attributes{};
  CUlaunchConfig config{};
  if (has_cluster(shape)) {
    CUlaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  }
  if (shape.overlaps_previous && driver().version >= kRecordsOverlaps) {
    CUlaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDimX = shape.grid.x;
  config.gridDimY = shape.grid.y;
  config.gridDimZ = shape.grid.z;
  config.blockDimX = shape.block.x;
  config.blockDimY = shape.block.y;
  config.blockDimZ = shape.block.z;
  config.sharedMemBytes = static_cast<unsigned>(shape.smem_bytes);
  config.hStream = stream.handle();
  config.attrs = attributes.data();
  const Scope scope(kernel.device());
  const CUresult result = driver().cuLaunchKernelEx(&config, function_of(kernel),
                                                    const_cast<void**>(arguments.data()), nullptr);
  if (result != CUDA_SUCCESS) check(result, text_of(shape));
}

}  // namespace dfa::gpu
