#pragma once

#include "bench/result.h"

namespace dfa::bench::testing {

inline CaseResult sample_case(const std::string& algorithm, double median_ms) {
  CaseResult c;
  c.suite = "three_way";
  c.problem = "fwd fp32 full b1 hq8 hk8 sq512 sk512 d64";
  c.algorithm = algorithm;
  c.backend = "cpu";
  c.config = "ForwardConfig{.block_q=64}";
  c.origin = "default";
  c.why = "because";
  c.precision = "fp32";
  c.reason = "not measured: no RAPL";
  c.time_ms = TimeMs{median_ms, median_ms * 0.9, median_ms * 1.2, median_ms * 0.002, 25, median_ms};
  c.tflops = 0.1;
  c.memory_bytes = 1 << 20;
  c.check = CheckVerdict{true, 1e-6, 1e-5, 1, "o", false};
  c.seed = 1;
  c.flops = 1e9;
  c.not_measured = {{"energy_j", "no RAPL"}};
  return c;
}

inline Result sample_result() {
  Result result;
  result.created = "2026-01-31T12:00:00Z";
  result.argv = {"dfa", "bench"};
  result.git = {"0123456789012345678901234567890123456789", true};
  result.machine.host = "box";
  result.machine.cpu = "Some CPU";
  result.machine.isa = "cpu_avx512";
  result.machine.threads = 2;
  result.machine.toolchain = "dfa 0.1.0, g++ 12";
  result.scale = "cpu";
  result.cases = {sample_case("standard", 4), sample_case("flash", 2), sample_case("dynamic", 2)};
  result.cases[2].search = measure::Search{0.5, 12, 81};
  CaseResult oom = sample_case("standard", 1);
  oom.problem = "fwd fp32 full b1 hq8 hk8 sq65536 sk65536 d64";
  oom.status = CaseStatus::out_of_memory;
  oom.reason = "needs 300 GB, of which 20 GB are there; not run";
  oom.time_ms.reset();
  oom.tflops.reset();
  oom.check.reset();
  result.cases.push_back(oom);
  return result;
}

}  // namespace dfa::bench::testing
