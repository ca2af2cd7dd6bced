#pragma once

#include <cstdint>
#include <string>

#include "dfa/error.h"

// NVML's binary interface, as far as it is used here: our own declarations, nothing of a toolkit.
// Only calls that read; those that set a limit or clocks are in owner.cpp. Sizes are those of the
// library for x86-64 and AArch64 Linux.
namespace dfa::nvml {

struct DeviceOpaque;
struct GpmSampleOpaque;
using Handle = DeviceOpaque*;
using GpmSampleHandle = GpmSampleOpaque*;

// What a call of the library answered, in words: "the driver is not loaded", "not supported by
// this device", …
std::string status_text(int status);

// One function of the library. Called, it says why it could not: missing in this version of the
// library, or the status it returned.
template <typename... Parameters>
struct Function {
  const char* name;
  int (*address)(Parameters...) = nullptr;

  Verdict operator()(Parameters... arguments) const {
    if (address == nullptr) {
      return Verdict::no(std::string(name) + " is missing in this version of NVML");
    }
    const int status = address(arguments...);
    if (status == 0) return Verdict::yes();
    return Verdict::no(std::string(name) + ": " + status_text(status));
  }
};

struct PciInfo {
  char legacy_bus_id[16];
  std::uint32_t domain;
  std::uint32_t bus;
  std::uint32_t device;
  std::uint32_t device_id;
  std::uint32_t subsystem_id;
  char bus_id[32];  // "00000000:3B:00.0"
};
static_assert(sizeof(PciInfo) == 68);

struct Utilization {
  std::uint32_t gpu;  // percent of time with any kernel resident
  std::uint32_t memory;
};

struct Memory {
  std::uint64_t total;
  std::uint64_t free;
  std::uint64_t used;
};

struct ProcessInfo {
  std::uint32_t pid;
  std::uint64_t used_memory;
  std::uint32_t gpu_instance;
  std::uint32_t compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);

union AnyValue {
  double f64;
  std::uint32_t u32;
  std::uint64_t u64;
  std::int64_t i64;
  std::int32_t i32;
  std::uint16_t u16;
};

enum class ValueType : std::uint32_t { f64, u32, unsigned_long, u64, i64, i32, u16 };

struct FieldValue {
  std::uint32_t field;
  std::uint32_t scope;
  std::int64_t timestamp_us;
  std::int64_t latency_us;
  ValueType type;
  std::int32_t status;  // the call may succeed while one field fails
  AnyValue value;
};
static_assert(sizeof(FieldValue) == 40);

struct GpmSupport {
  std::uint32_t version = 1;
  std::uint32_t supported = 0;
};

struct GpmMetric {
  std::uint32_t id;
  std::int32_t status;
  double value;
  const void* names[3];
};
static_assert(sizeof(GpmMetric) == 40);

// The library's array has grown with its versions; it touches only the first `count` entries.
struct GpmMetrics {
  static constexpr int kCapacity = 333;
  std::uint32_t version = 1;
  std::uint32_t count = 0;
  GpmSampleHandle first = nullptr;
  GpmSampleHandle second = nullptr;
  GpmMetric metrics[kCapacity] = {};
};
static_assert(sizeof(GpmMetrics) == 13344);

struct Api {
  Function<> init{"nvmlInit_v2"};
  Function<> shutdown{"nvmlShutdown"};
  Function<char*, unsigned> driver_version{"nvmlSystemGetDriverVersion"};
  Function<char*, unsigned> nvml_version{"nvmlSystemGetNVMLVersion"};
  Function<unsigned*> count{"nvmlDeviceGetCount_v2"};
  Function<unsigned, Handle*> by_index{"nvmlDeviceGetHandleByIndex_v2"};
  Function<const char*, Handle*> by_pci_id{"nvmlDeviceGetHandleByPciBusId_v2"};
  Function<const char*, Handle*> by_uuid{"nvmlDeviceGetHandleByUUID"};
  Function<Handle, char*, unsigned> name{"nvmlDeviceGetName"};
  Function<Handle, char*, unsigned> uuid{"nvmlDeviceGetUUID"};
  Function<Handle, PciInfo*> pci_info{"nvmlDeviceGetPciInfo_v3"};
  Function<Handle, unsigned*> index{"nvmlDeviceGetIndex"};
  Function<Handle, unsigned*> minor{"nvmlDeviceGetMinorNumber"};
  Function<Handle, unsigned*, unsigned*> memory_clocks{"nvmlDeviceGetSupportedMemoryClocks"};
  Function<Handle, unsigned, unsigned*, unsigned*> sm_clocks{
      "nvmlDeviceGetSupportedGraphicsClocks"};  // beside one of the memory
  Function<Handle, unsigned*> power_limit{"nvmlDeviceGetEnforcedPowerLimit"};
  Function<Handle, int*> persistence{"nvmlDeviceGetPersistenceMode"};
  Function<Handle, unsigned*, unsigned*> mig_mode{"nvmlDeviceGetMigMode"};
  Function<Handle, unsigned*, ProcessInfo*> compute_processes{
      "nvmlDeviceGetComputeRunningProcesses_v3"};
  Function<Handle, unsigned long long*> total_energy{"nvmlDeviceGetTotalEnergyConsumption"};
  Function<Handle, unsigned*> power_usage{"nvmlDeviceGetPowerUsage"};
  Function<Handle, int, FieldValue*> field_values{"nvmlDeviceGetFieldValues"};
  Function<Handle, int, unsigned*> temperature{"nvmlDeviceGetTemperature"};
  Function<Handle, int, unsigned*> clock{"nvmlDeviceGetClockInfo"};
  Function<Handle, Utilization*> utilization{"nvmlDeviceGetUtilizationRates"};
  Function<Handle, Memory*> memory{"nvmlDeviceGetMemoryInfo"};
  Function<Handle, unsigned long long*> clock_events{"nvmlDeviceGetCurrentClocksEventReasons"};
  Function<Handle, unsigned long long*> throttle_reasons{
      "nvmlDeviceGetCurrentClocksThrottleReasons"};  // the same under its older name
  Function<Handle, unsigned, int*> nvlink_state{"nvmlDeviceGetNvLinkState"};
  Function<Handle, GpmSupport*> gpm_support{"nvmlGpmQueryDeviceSupport"};
  Function<GpmSampleHandle*> gpm_alloc{"nvmlGpmSampleAlloc"};
  Function<GpmSampleHandle> gpm_free{"nvmlGpmSampleFree"};
  Function<Handle, GpmSampleHandle> gpm_sample{"nvmlGpmSampleGet"};
  Function<GpmMetrics*> gpm_metrics{"nvmlGpmMetricsGet"};
};

// Calls visit(function) for every function of the table.
template <typename Visitor>
void for_each_function(Api& api, Visitor&& visit) {
  const auto each = [&](auto&... functions) { (visit(functions), ...); };
  each(api.init, api.shutdown, api.driver_version, api.nvml_version, api.count, api.by_index,
       api.by_pci_id, api.by_uuid, api.name, api.uuid, api.pci_info, api.index, api.minor,
       api.memory_clocks, api.sm_clocks, api.power_limit, api.persistence, api.mig_mode,
       api.compute_processes, api.total_energy, api.power_usage, api.field_values, api.temperature,
       api.clock, api.utilization, api.memory, api.clock_events, api.throttle_reasons,
       api.nvlink_state, api.gpm_support, api.gpm_alloc, api.gpm_free, api.gpm_sample,
       api.gpm_metrics);
}

}  // namespace dfa::nvml
