#pragma once

#include <filesystem>

#include "bench/result.h"

namespace dfa::bench {

// Writes baseline_results.json, flash_results.json and dynamic_results.json (standard, flash,
// dynamic) into `folder`: arrays of {L, B, D, H, avg_latency_ms, avg_power_watts, max_power_watts,
// energy_joules} with D = heads × head dim, the mean as average, and the precision; null where
// nothing measured. Only cases of the three_way suite count.
void write_three_way(const std::filesystem::path& folder, const Result& result);

}  // namespace dfa::bench
