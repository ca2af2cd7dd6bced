#include "gpu/driver.h"

#include <array>
#include <span>

#include "base/env.h"
#include "gpu/device.h"
#include "gpu/error.h"

namespace dfa::gpu {
namespace {

constexpr int kLeastVersion = 12000;  // the first with libraries of kernels independent of contexts

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string too_old(int version) {
  return "the NVIDIA driver is for CUDA " + version_text(version) + "; at least " +
         version_text(kLeastVersion) + " is needed";
}

// Fills the table; the reason names the first function that is missing.
Verdict resolve(Driver& driver) {
  const auto get = reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(
      driver.library.symbol("cuGetProcAddress_v2"));
  if (get == nullptr) {
    return Verdict::no("the NVIDIA driver is older than CUDA " + version_text(kLeastVersion));
  }
  const auto find = [&](const char* name, int version = kLeastVersion) {
    void* address = nullptr;
    const auto flags = CU_GET_PROC_ADDRESS_DEFAULT;
    return get(name, &address, version, flags, nullptr) == CUDA_SUCCESS ? address : nullptr;
  };
#define DFA_RESOLVE(name)                                             \
  driver.name = reinterpret_cast<decltype(driver.name)>(find(#name)); \
  if (driver.name == nullptr) return Verdict::no("the NVIDIA driver lacks " #name);
  DFA_DRIVER_FUNCTIONS(DFA_RESOLVE)
#undef DFA_RESOLVE
#define DFA_RESOLVE_NEWER(name, since) \
  driver.name = reinterpret_cast<decltype(driver.name)>(find(#name, since));
  DFA_NEWER_DRIVER_FUNCTIONS(DFA_RESOLVE_NEWER)
#undef DFA_RESOLVE_NEWER
  return Verdict::yes();
}

// "CUDA_ERROR_UNKNOWN (unknown error)"
std::string text_of(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  if (name == nullptr) return "error " + std::to_string(static_cast<int>(result));
  return std::string(name) + (text != nullptr ? std::string(" (") + text + ")" : "");
}

Verdict start(const Driver& driver) {
  const CUresult result = driver.cuInit(0);
  int devices = 0;
  if (result == CUDA_SUCCESS) driver.cuDeviceGetCount(&devices);
  if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && devices == 0)) {
    return Verdict::no("the NVIDIA driver is there but shows no device");
  }
  if (result != CUDA_SUCCESS) {
    return Verdict::no("the NVIDIA driver does not start: " + text_of(driver, result));
  }
  return Verdict::yes();
}

struct Process {
  Driver driver;
  Verdict status;
};

// Never destroyed: other static objects may still hold device memory at exit.
const Process& process() {
  static const Process* const instance = [] {
    auto* fresh = new Process;
    fresh->status = open_driver(env("DFA_CUDA_DRIVER"), fresh->driver);
    return fresh;
  }();
  return *instance;
}

// After these the context only repeats the error.
constexpr std::array kSticky{
    CUDA_ERROR_ECC_UNCORRECTABLE,    CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUDA_ERROR_ILLEGAL_ADDRESS,      CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,   CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,           CUDA_ERROR_LAUNCH_FAILED,
};

bool is_sticky(CUresult result) {
  for (const CUresult sticky : kSticky) {
    if (result == sticky) return true;
  }
  return false;
}

bool is_other_architecture(CUresult result) {
  return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE ||
         result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

}  // namespace

Verdict open_driver(const std::string& library_name, Driver& driver) {
  driver.library = SharedLibrary::open_first(std::span(&library_name, 1));
  if (!driver.library.is_open()) return Verdict::no("no NVIDIA driver: " + driver.library.reason());
  const auto get_version = reinterpret_cast<decltype(&::cuDriverGetVersion)>(
      driver.library.symbol("cuDriverGetVersion"));
  if (get_version == nullptr || get_version(&driver.version) != CUDA_SUCCESS) {
    return Verdict::no("'" + library_name + "' is no NVIDIA driver: it tells no version");
  }
  if (driver.version < kLeastVersion) return Verdict::no(too_old(driver.version));
  const Verdict resolved = resolve(driver);
  return resolved ? start(driver) : resolved;
}

Verdict available() { return process().status; }

int driver_version() { return driver().version; }

const Driver& driver() {
  const Process& instance = process();
  if (!instance.status) throw Unsupported("cuda: " + instance.status.reason);
  return instance.driver;
}

void check(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const std::string message = "cuda: " + what + ": " + text_of(driver(), result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfMemory(message);
  if (is_other_architecture(result)) {
    throw Unsupported(message + "; the code is for another architecture or a newer driver");
  }
  if (result == CUDA_ERROR_NOT_SUPPORTED) throw Unsupported(message);
  const bool sticky = is_sticky(result);
  throw DriverError(
      message + (sticky ? "; a kernel failed and this process cannot use the device any more" : ""),
      static_cast<int>(result), sticky);
}

}  // namespace dfa::gpu
