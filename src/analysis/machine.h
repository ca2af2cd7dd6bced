#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/diagnostics.h"
#include "dfa/dtype.h"

// What machines can do at most: the roofs of the roofline. Rates are for dense operands.
namespace dfa::analysis {

// A number of 0 is not offered (datasheet) or not measured (measured).
struct Machine {
  std::string name;
  std::string source;  // datasheet | measured
  std::string note;    // where the numbers are from
  double fp32_flops = 0;
  double tf32_flops = 0;
  double fp16_flops = 0;
  double bf16_flops = 0;
  double fp8_flops = 0;
  double memory_bytes_per_s = 0;  // read plus write
  std::int64_t memory_bytes = 0;
  std::int64_t cache_bytes = 0;  // shared by all units: L2 of a GPU, L3 of a CPU
  std::int64_t sram_bytes = 0;   // what one tile may use: a block's shared memory, a core's L2
  int units = 0;                 // multiprocessors or cores

  double peak_flops(DType type) const;
};

// Caches and size of the processor that ceilings were measured on.
struct HostSizes {
  std::string model;
  std::int64_t memory_bytes = 0;
  std::int64_t shared_cache_bytes = 0;
  std::int64_t core_cache_bytes = 0;
};

// Every entry of that name: h200 has one from the datasheet and one measured. Throws
// InvalidArgument listing the names there are.
std::vector<Machine> machines_named(const std::string& name);

// The processor this runs on, from a backend's measured ceilings.
Machine measured_host(const Ceilings& ceilings, const HostSizes& sizes);

}  // namespace dfa::analysis
