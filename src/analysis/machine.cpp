#include "analysis/machine.h"

#include "dfa/error.h"

namespace dfa::analysis {
namespace {

constexpr std::int64_t kKiB = 1LL << 10;
constexpr std::int64_t kMiB = 1LL << 20;
constexpr std::int64_t kGB = 1'000'000'000;

// Datasheets state Hopper's and Ampere's tensor rates with 2:4 sparsity; these are the dense
// halves.
const std::vector<Machine>& table() {
  static const std::vector<Machine> machines{
      {.name = "h200",
       .source = "datasheet",
       .note = "H200 SXM, dense; 227 KiB of shared memory a block",
       .fp32_flops = 67e12,
       .tf32_flops = 494.5e12,
       .fp16_flops = 989.5e12,
       .bf16_flops = 989.5e12,
       .fp8_flops = 1979e12,
       .memory_bytes_per_s = 4.8e12,
       .memory_bytes = 141 * kGB,
       .cache_bytes = 50 * kMiB,
       .sram_bytes = 227 * kKiB,
       .units = 132},
      {.name = "h200",
       .source = "measured",
       .note = "one H200 at its 700 W limit: sustained library GEMM, fp32 SIMT loop, large copy",
       .fp32_flops = 50e12,
       .tf32_flops = 392e12,
       .bf16_flops = 677e12,
       .fp8_flops = 1258e12,
       .memory_bytes_per_s = 4.26e12,
       .memory_bytes = 141 * kGB,
       .cache_bytes = 50 * kMiB,
       .sram_bytes = 227 * kKiB,
       .units = 132},
      {.name = "h100",
       .source = "datasheet",
       .note = "H100 SXM 80 GB, dense; 227 KiB of shared memory a block",
       .fp32_flops = 67e12,
       .tf32_flops = 494.5e12,
       .fp16_flops = 989.5e12,
       .bf16_flops = 989.5e12,
       .fp8_flops = 1979e12,
       .memory_bytes_per_s = 3.35e12,
       .memory_bytes = 80 * kGB,
       .cache_bytes = 50 * kMiB,
       .sram_bytes = 227 * kKiB,
       .units = 132},
      {.name = "a100",
       .source = "datasheet",
       .note = "A100 SXM 40 GB, dense; no fp8; 163 KiB of shared memory a block",
       .fp32_flops = 19.5e12,
       .tf32_flops = 156e12,
       .fp16_flops = 312e12,
       .bf16_flops = 312e12,
       .memory_bytes_per_s = 1.555e12,
       .memory_bytes = 40 * kGB,
       .cache_bytes = 40 * kMiB,
       .sram_bytes = 163 * kKiB,
       .units = 108},
      {.name = "t4",
       .source = "datasheet",
       .note = "T4 16 GB; fp16 tensor cores only; 64 KiB of shared memory a block",
       .fp32_flops = 8.1e12,
       .fp16_flops = 65e12,
       .memory_bytes_per_s = 320e9,
       .memory_bytes = 16 * kGB,
       .cache_bytes = 4 * kMiB,
       .sram_bytes = 64 * kKiB,
       .units = 40},
  };
  return machines;
}

}  // namespace

double Machine::peak_flops(DType type) const {
  switch (type) {
    case DType::fp32: return fp32_flops;
    case DType::tf32: return tf32_flops;
    case DType::fp16: return fp16_flops;
    case DType::bf16: return bf16_flops;
    case DType::e4m3: return fp8_flops;
  }
  return 0;
}

std::vector<Machine> machines_named(const std::string& name) {
  std::vector<Machine> found;
  std::string names;
  for (const Machine& machine : table()) {
    if (machine.name == name) found.push_back(machine);
    if (machine.source == "datasheet") names += (names.empty() ? "" : ", ") + machine.name;
  }
  if (found.empty()) {
    throw InvalidArgument("machine '" + name + "' is unknown; accepted: " + names + ", this");
  }
  return found;
}

Machine measured_host(const Ceilings& ceilings, const HostSizes& sizes) {
  return {.name = "this",
          .source = "measured",
          .note = sizes.model + ", " + std::to_string(ceilings.threads) +
                  " threads: register-only multiply-add loops, large copy",
          .fp32_flops = ceilings.fp32_flops,
          .fp16_flops = ceilings.fp16_flops,
          .bf16_flops = ceilings.bf16_flops,
          .memory_bytes_per_s = ceilings.copy_bytes,
          .memory_bytes = sizes.memory_bytes,
          .cache_bytes = sizes.shared_cache_bytes,
          .sram_bytes = sizes.core_cache_bytes,
          .units = ceilings.threads};
}

}  // namespace dfa::analysis
