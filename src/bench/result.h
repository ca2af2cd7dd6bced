#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "measure/telemetry.h"
#include "measure/tuner.h"

// What a measurement leaves behind: the result file `dfa-result/1` as plain values. Empty optionals
// are null in the file: not measured, with the reason in `not_measured`.
namespace dfa::bench {

inline constexpr const char* kSchema = "dfa-result/1";

enum class CaseStatus : int { ok, out_of_memory, unsupported, failed };

const char* name_of(CaseStatus status);

struct TimeMs {
  double median = 0;
  double min = 0;
  double p95 = 0;
  double mad = 0;
  int n = 0;
  double mean = 0;
  std::optional<double> half_width{};  // of the median's 95 % interval
  friend bool operator==(const TimeMs&, const TimeMs&) = default;
};

struct Throttle {
  std::optional<double> power_pct;
  std::optional<double> thermal_pct;
  friend bool operator==(const Throttle&, const Throttle&) = default;
};

// The verdict of the fp64 ruler on the very inputs that were timed.
struct CheckVerdict {
  bool ok = false;
  std::optional<double> max_error;  // of the worst tensor; null when not finite
  std::optional<double> bound;
  std::uint64_t seed = 0;
  std::string tensor;    // the worst one: o, lse, dq, dk, dv
  bool sampled = false;  // a seeded sample of heads and rows, not every element
  friend bool operator==(const CheckVerdict&, const CheckVerdict&) = default;
};

// Where a case's samples stand in the sidecar: float32 little-endian rows of these columns.
struct SampleRows {
  std::uint64_t offset_bytes = 0;
  std::uint64_t rows = 0;
  std::vector<std::string> columns;
  friend bool operator==(const SampleRows&, const SampleRows&) = default;
};

struct CaseResult {
  std::string suite;
  std::string problem;  // canonical problem line
  std::string algorithm;
  std::string backend;
  std::string config;           // forward; empty when there is none
  std::string backward_config;  // empty when there is none
  std::string origin;           // default | forced | measured
  std::string why;
  std::string precision;         // element type of the problem
  std::string launch = "eager";  // or graph
  int sm_budget = 0;             // multiprocessors that launches may take; 0: all
  int calls_per_run = 1;         // in a timed run; times, joules and flops are of one call
  CaseStatus status = CaseStatus::ok;
  std::optional<std::string> reason;  // why the status is not ok, or what was not measured and why

  std::optional<TimeMs> time_ms;
  std::optional<double> tflops;
  std::optional<double> energy_j;  // of one run, everything the counters cover included
  std::optional<double> energy_uncertainty_j;
  std::optional<double> power_avg_w;
  std::optional<double> power_max_w;
  std::optional<double> power_sampled_w;  // mean of instantaneous readings, beside power_avg_w
  std::optional<double> gflop_per_j;
  std::optional<double> temp_c;
  std::optional<double> utilization_pct;
  std::optional<double> sm_clock_mhz;
  std::optional<double> cpu_clock_mhz;
  std::optional<double> other_load_pct;  // of the machine's processors, by others, while timing
  std::optional<int> foreign_processes;  // of others with a context on the GPU
  Throttle throttle;
  std::optional<std::int64_t> memory_bytes;       // tensors and workspace, as planned
  std::optional<std::int64_t> memory_peak_bytes;  // tensors and what a run touched on top, measured
  std::optional<std::int64_t> workspace_bytes;    // as planned
  std::optional<CheckVerdict> check;
  std::uint64_t seed = 0;  // of the inputs
  double flops = 0;        // of one run
  std::optional<measure::Search> search;
  std::optional<std::string> samples_file;  // relative to the result file
  std::optional<SampleRows> samples;
  std::map<std::string, std::string> not_measured;  // field → why it is null

  friend bool operator==(const CaseResult&, const CaseResult&) = default;
};

struct GitState {
  std::optional<std::string> sha;
  std::optional<bool> dirty;
  friend bool operator==(const GitState&, const GitState&) = default;
};

struct MachineFacts {
  std::string host;
  std::string cpu;
  std::string isa;
  int threads = 0;
  std::optional<measure::GpuFacts> gpu;
  std::string toolchain;
  std::string os;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t l3_bytes = 0;
  bool virtual_machine = false;
  friend bool operator==(const MachineFacts&, const MachineFacts&) = default;
};

struct Result {
  std::string schema = kSchema;
  std::string created;  // UTC, 2026-01-31T12:00:00Z
  std::vector<std::string> argv;
  GitState git;
  MachineFacts machine;
  std::string scale;  // cpu | full
  std::vector<CaseResult> cases;
  friend bool operator==(const Result&, const Result&) = default;
};

std::string to_json(const Result& result);

// Throws InvalidArgument in one line that names the place in the file and what was expected.
Result parse_result(const std::string& json);

// As parse_result, with the path in front; IoError when the file cannot be read.
Result read_result(const std::filesystem::path& path);

}  // namespace dfa::bench
