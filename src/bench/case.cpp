#include "bench/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/energy.h"
#include "measure/statistics.h"

namespace dfa::bench {
namespace {

// A GPU is kept busy: so much work is queued before anybody waits for it. Then it has none until
// the next is asked for, which takes a peer in another process a few tenths of a millisecond.
constexpr double kQueuedSeconds = 0.1;
constexpr double kMostQueued = 5000;

std::optional<double> median_of(const std::vector<Sample>& samples,
                                std::optional<double> Sample::*field) {
  std::vector<double> values;
  for (const Sample& sample : samples) {
    if (sample.*field) values.push_back(*(sample.*field));
  }
  if (values.empty()) return std::nullopt;
  return measure::summarize(values).median;
}

double median_duration_s(const std::vector<Sample>& samples) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(sample.duration_s);
  return values.empty() ? 0 : measure::summarize(values).median;
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

bool Case::attempt(const std::function<void()>& body) {
  CaseStatus status = CaseStatus::ok;
  std::string reason;
  const bool ok = guarded(body, status, reason);
  if (!ok) end(status, std::move(reason));
  return ok;
}

void Case::describe_plans(const Problem& problem) {
  record.config = plans.forward ? plans.forward->config : "";
  record.backward_config = plans.backward ? plans.backward->backward_config : "";
  record.origin = plans.any().origin;
  record.why = plans.any().why;
  record.workspace_bytes = static_cast<std::int64_t>(plans.workspace_bytes());
  record.memory_bytes =
      static_cast<std::int64_t>(plans.memory_bytes() + measure::tensor_bytes(problem));
}

void Case::measure_energy(const measure::Telemetry& telemetry, Clock& clock, double seconds) {
  const double run_s = median_duration_s(samples) * record.calls_per_run;
  const int runs = telemetry.on_gpu && run_s > 0
                       ? static_cast<int>(std::clamp(kQueuedSeconds / run_s, 1.0, kMostQueued))
                       : 1;
  const SustainedEnergy energy = bench::measure_energy(
      [&] { implementation->run(runs); }, seconds > 0 ? seconds : energy_window_s(telemetry.energy),
      telemetry, clock);
  const double calls = 1.0 * runs * record.calls_per_run;
  record.throttle = energy.throttle;
  if (!energy.throttle_reason.empty()) record.not_measured["throttle"] = energy.throttle_reason;
  record.utilization_pct = energy.utilization_pct;
  record.temp_c = energy.temp_c;
  if (energy.clock_hz) record.sm_clock_mhz = *energy.clock_hz * 1e-6;
  if (!energy.energy_j) {
    no_energy(telemetry, energy.reason);
    return;
  }
  record.energy_j = *energy.energy_j / calls;
  record.energy_uncertainty_j = energy.uncertainty_j / calls;
  record.power_avg_w = energy.power_avg_w;
  record.power_max_w = energy.power_max_w;
  record.power_sampled_w = energy.power_sampled_w;
  if (*record.energy_j > 0) record.gflop_per_j = finite(record.flops * 1e-9 / *record.energy_j);
  if (!energy.power_max_w) record.not_measured["power_max_w"] = "too few readings in the window";
}

void Case::no_energy(const measure::Telemetry& telemetry, const std::string& reason) {
  auto& why = record.not_measured;
  for (const char* field :
       {"energy_j", "energy_uncertainty_j", "power_avg_w", "power_max_w", "gflop_per_j"}) {
    why[field] = reason;
  }
  if (!telemetry.utilization.empty() && !record.utilization_pct) why["utilization_pct"] = reason;
  if (!telemetry.power_capped.empty() && !record.throttle.power_pct) why["throttle"] = reason;
}

void Case::measure_memory(const Problem& problem) {
  const measure::MemoryGrowth growth = implementation->growth();
  if (growth.bytes) {
    record.memory_peak_bytes =
        *growth.bytes + static_cast<std::int64_t>(measure::tensor_bytes(problem));
  } else {
    record.not_measured["memory_peak_bytes"] = growth.reason;
  }
}

void Case::check(const CheckOptions& options) {
  const CheckReport report = implementation->check(options);
  const TensorCheck& worst = report.worst();
  record.check = CheckVerdict{.ok = report.ok,
                              .max_error = finite(worst.max_error),
                              .bound = finite(worst.bound),
                              .seed = options.seed,
                              .tensor = worst.name,
                              .sampled = report.sampled};
  if (!report.ok) end(CaseStatus::failed, "wrong result: " + worst.name + ": " + worst.detail);
}

void Case::finish(const measure::Telemetry& telemetry) {
  if (!samples.empty()) {
    std::vector<double> ms;
    for (const Sample& sample : samples) ms.push_back(sample.duration_s * 1e3);
    const measure::Summary s = measure::summarize(ms);
    record.time_ms = TimeMs{s.median, s.min, s.p95, s.mad, s.n, s.mean, finite(s.half_width)};
    if (s.median > 0) record.tflops = finite(record.flops / (s.median * 1e-3) * 1e-12);
    // Those of the sustained window, where there was one, tell more than those of short runs.
    if (!record.temp_c) record.temp_c = median_of(samples, &Sample::temp_c);
    auto& megahertz = telemetry.on_gpu ? record.sm_clock_mhz : record.cpu_clock_mhz;
    const auto hz = median_of(samples, &Sample::clock_hz);
    if (!megahertz && hz) megahertz = *hz * 1e-6;
  }
  if (record.status == CaseStatus::ok) explain_nulls(telemetry);
}

void Case::explain_nulls(const measure::Telemetry& telemetry) {
  auto& why = record.not_measured;
  const char* const clock = telemetry.on_gpu ? "sm_clock_mhz" : "cpu_clock_mhz";
  const auto& megahertz = telemetry.on_gpu ? record.sm_clock_mhz : record.cpu_clock_mhz;
  if (!record.temp_c) why["temp_c"] = telemetry.temperature.status.reason;
  if (!megahertz) why[clock] = telemetry.clock.status.reason;
  if (!record.other_load_pct) why["other_load_pct"] = "'/proc/stat' tells no processor time";
  if (telemetry.on_gpu) {
    why["cpu_clock_mhz"] = "this backend runs on a GPU";
  } else {
    why["sm_clock_mhz"] = "this backend runs on no GPU";
  }
  if (peer) {
    why["memory_bytes"] = "a peer plans no memory; memory_peak_bytes is what it took";
  }
  // Both are read while energy is measured, so that its reason may stand here already.
  if (!record.utilization_pct) {
    why.emplace("utilization_pct", telemetry.utilization.status.reason);
  }
  if (!record.throttle.power_pct) why.emplace("throttle", telemetry.power_capped.status.reason);
  std::vector<std::string> reasons;
  for (const auto& [field, reason] : why) {
    if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
      reasons.push_back(reason);
    }
  }
  record.reason = "not measured: " + fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace dfa::bench
