#include "gpu/device.h"

#include <memory>
#include <mutex>
#include <vector>

#include "gpu/driver.h"

namespace dfa::gpu {
namespace {

DeviceFacts read_facts(int index) {
  const Driver& cuda = driver();
  CUdevice device = 0;
  check(cuda.cuDeviceGet(&device, index), "cuDeviceGet of device " + std::to_string(index));
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(cuda.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  DeviceFacts facts;
  facts.index = index;
  char text[256] = "";
  check(cuda.cuDeviceGetName(text, sizeof text, device), "cuDeviceGetName");
  facts.name = text;
  check(cuda.cuDeviceGetPCIBusId(text, sizeof text, device), "cuDeviceGetPCIBusId");
  for (const char* c = text; *c != '\0'; ++c) {
    facts.pci_id += *c >= 'A' && *c <= 'F' ? static_cast<char>(*c - 'A' + 'a') : *c;
  }
  facts.capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                     attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts.sm_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  facts.clock_khz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  facts.smem_per_block_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  facts.smem_per_sm_bytes = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  facts.registers_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  facts.threads_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  facts.l2_bytes = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  check(cuda.cuDeviceTotalMem(&facts.memory_bytes, device), "cuDeviceTotalMem");
  return facts;
}

// Of the calling thread; null where there is none.
CUcontext current_context() {
  CUcontext current = nullptr;
  return driver().cuCtxGetCurrent(&current) == CUDA_SUCCESS ? current : nullptr;
}

}  // namespace

// The devices this process has used.
struct DeviceTable {
  std::mutex mutex;
  std::vector<std::unique_ptr<Device>> devices;

  // Never destroyed, like the driver.
  static DeviceTable& instance() {
    static auto* const table = new DeviceTable;
    return *table;
  }

  const Device& get(int index, int count) {
    const std::lock_guard lock(mutex);
    devices.resize(static_cast<std::size_t>(count));
    std::unique_ptr<Device>& slot = devices[static_cast<std::size_t>(index)];
    if (slot == nullptr) {
      std::unique_ptr<Device> fresh(new Device);
      fresh->facts_ = read_facts(index);
      slot = std::move(fresh);
    }
    return *slot;
  }
};

std::string DeviceFacts::arch() const {
  return "sm_" + std::to_string(capability) + (capability >= 90 ? "a" : "");
}

int Device::count() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

const Device& Device::get(int index) {
  const int devices = count();
  if (index < 0 || index >= devices) {
    throw InvalidArgument("cuda: device " + std::to_string(index) +
                          " is not there; accepted: 0 to " + std::to_string(devices - 1));
  }
  return DeviceTable::instance().get(index, devices);
}

int Device::current_index() {
  const int devices = count();
  CUdevice current = 0, handle = 0;
  if (current_context() == nullptr || driver().cuCtxGetDevice(&current) != CUDA_SUCCESS) return 0;
  for (int index = 0; index < devices; ++index) {
    if (driver().cuDeviceGet(&handle, index) == CUDA_SUCCESS && handle == current) return index;
  }
  return 0;
}

CUctx_st* Device::retain() const {
  const std::lock_guard lock(DeviceTable::instance().mutex);
  if (CUctx_st* const there = context_.load(std::memory_order_relaxed)) return there;
  CUdevice handle = 0;
  check(driver().cuDeviceGet(&handle, facts_.index), "cuDeviceGet");
  CUcontext fresh = nullptr;
  check(driver().cuDevicePrimaryCtxRetain(&fresh, handle),
        "cuDevicePrimaryCtxRetain on " + facts_.name);
  context_.store(fresh, std::memory_order_release);
  return fresh;
}

int Device::sms_of(CUctx_st* current) const {
  const Driver& cuda = driver();
  if (current == nullptr || cuda.cuCtxGetDevResource == nullptr ||
      current == context_.load(std::memory_order_acquire)) {
    return facts_.sm_count;
  }
  CUdevice handle = 0, own = 0;
  CUdevResource part{};
  const bool is_ours = cuda.cuCtxGetDevice(&handle) == CUDA_SUCCESS &&
                       cuda.cuDeviceGet(&own, facts_.index) == CUDA_SUCCESS && handle == own;
  const bool is_told =
      is_ours && cuda.cuCtxGetDevResource(current, &part, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS;
  return is_told && part.sm.smCount > 0 ? static_cast<int>(part.sm.smCount) : facts_.sm_count;
}

int Device::usable_sms() const { return sms_of(current_context()); }

bool Device::holds(const void* pointer) const {
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  CUmemorytype type{};
  int index = -1;
  void* values[] = {&type, &index};
  return driver().cuPointerGetAttributes(2, attributes, values,
                                         reinterpret_cast<CUdeviceptr>(pointer)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE && index == facts_.index;
}

MemoryInfo Device::memory() const {
  const Scope scope(*this);
  MemoryInfo info;
  check(driver().cuMemGetInfo(&info.free_bytes, &info.total_bytes), "cuMemGetInfo");
  return info;
}

void Device::synchronize() const {
  const Scope scope(*this);
  check(driver().cuCtxSynchronize(), "cuCtxSynchronize on " + facts_.name);
}

Scope::Scope(const Device& device) {
  CUcontext const current = current_context(), whole = device.context();
  pushed_ = current != whole && device.sms_of(current) == device.facts().sm_count;
  if (pushed_) check(driver().cuCtxPushCurrent(whole), "cuCtxPushCurrent");
}

Scope::~Scope() {
  CUcontext popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent(&popped);
}

}  // namespace dfa::gpu
