#include "bench/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "attention/registry.h"
#include "bench/energy.h"
#include "bench/machine.h"
#include "bench/memory_peak.h"
#include "bench/statistics.h"
#include "bench/telemetry.h"
#include "bench/tuner.h"
#include "bench/workload.h"
#include "sensors/cpu_load.h"
#include "sensors/host.h"
#include "sensors/system_clock.h"

namespace dfa::bench {
namespace {

constexpr double kMemoryShare = 0.9;        // MemAvailable is an estimate; the rest is margin
constexpr double kConditionsPeriod = 5e-3;  // sensors are slower than short kernels

// Limits that make a whole suite last about as long as it should.
struct Effort {
  double default_seconds_per_case;
  double search_s;
  double check_flops;
};

constexpr Effort effort_of(Scale scale) {
  return scale == Scale::cpu ? Effort{0.4, 0.4, 1e8} : Effort{2.0, 5.0, 1e9};
}

Algorithm base_algorithm(const std::string& name) {
  return name == "standard" ? Algorithm::standard : Algorithm::flash;
}

std::optional<double> median_of(const std::vector<Sample>& samples,
                                std::optional<double> Sample::*field) {
  std::vector<double> values;
  for (const Sample& sample : samples) {
    if (sample.*field) values.push_back(*(sample.*field));
  }
  if (values.empty()) return std::nullopt;
  return summarize(values).median;
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// One algorithm on one problem, as it goes through the stages of the study.
struct Candidate {
  CaseResult record;
  Prepared plans;
  std::vector<Sample> samples;

  bool alive() const { return record.status == Status::ok; }

  void end(Status status, std::string reason) {
    record.status = status;
    record.reason = std::move(reason);
  }

  // False, and the end of the case, when `body` throws.
  bool attempt(const std::function<void()>& body) {
    Status status = Status::ok;
    std::string reason;
    const bool ok = guarded(body, status, reason);
    if (!ok) end(status, std::move(reason));
    return ok;
  }

  void describe_plans(const Problem& problem) {
    record.config = plans.forward ? plans.forward->config : "";
    record.backward_config = plans.backward ? plans.backward->backward_config : "";
    record.origin = plans.any().origin;
    record.why = plans.any().why;
    record.flops = plans.flops();
    record.workspace_bytes = static_cast<std::int64_t>(plans.workspace_bytes());
    record.memory_bytes =
        *record.workspace_bytes + static_cast<std::int64_t>(tensor_bytes(problem));
  }
};

class StudyRun {
 public:
  StudyRun(const std::vector<ProblemGroup>& groups, const StudyOptions& options,
           const std::function<void(const Progress&)>& on_progress)
      : groups_(groups),
        options_(options),
        backend_(options.backend == "auto" ? default_backend()
                                           : find_backend(options.backend).name()),
        effort_(effort_of(options.scale)),
        on_progress_(on_progress),
        gpu_(find_backend(backend_).gpu_identity()),
        telemetry_(open_telemetry(gpu_, clock_)) {}

  Study run() {
    Study study;
    study.result.machine = describe_machine(options_.threads);
    study.result.machine.gpu = describe_gpu(gpu_);
    study.result.git = describe_source();
    study.result.scale = name_of(options_.scale);
    for (group_ = 0; group_ < groups_.size(); ++group_) {
      if (options_.interrupted && options_.interrupted()) break;
      for (Candidate& candidate : run_group(groups_[group_])) {
        study.result.cases.push_back(std::move(candidate.record));
        study.samples.push_back(std::move(candidate.samples));
      }
    }
    return study;
  }

 private:
  std::vector<Candidate> run_group(const ProblemGroup& group) {
    std::vector<Candidate> candidates = begin(group);
    report(0, group, "preparing");
    available_ = sensors::available_memory_bytes();
    std::unique_ptr<Workload> workload = make_workload(group.problem, candidates);
    if (workload) {
      for (Candidate& c : candidates) plan_case(c, *workload, group);
      time_cases(candidates, *workload, group);
      for (Candidate& c : candidates) examine(c, *workload, group);
    }
    for (Candidate& c : candidates) finish(c);
    return candidates;
  }

  std::vector<Candidate> begin(const ProblemGroup& group) const {
    std::vector<Candidate> candidates;
    for (const std::string& algorithm : group.algorithms) {
      Candidate candidate;
      candidate.record.suite = group.suite;
      candidate.record.problem = to_line(group.problem);
      candidate.record.algorithm = algorithm;
      candidate.record.backend = backend_;
      candidate.record.precision = name_of(group.problem.dtype);
      candidate.record.seed = options_.seed;
      candidates.push_back(std::move(candidate));
    }
    return candidates;
  }

  // The tensors all candidates share, or nothing when they cannot be had.
  std::unique_ptr<Workload> make_workload(const Problem& problem,
                                          std::vector<Candidate>& candidates) {
    Status status = Status::ok;
    std::string reason;
    std::unique_ptr<Workload> workload;
    guarded(
        [&] {
          require_memory(tensor_bytes(problem));
          workload = std::make_unique<Workload>(problem, backend_, options_.seed);
        },
        status, reason);
    if (!workload) {
      for (Candidate& candidate : candidates) candidate.end(status, reason);
    }
    return workload;
  }

  void require_memory(std::size_t bytes) const {
    const auto allowed = static_cast<std::size_t>(kMemoryShare * static_cast<double>(available_));
    if (available_ == 0 || bytes <= allowed) return;
    throw OutOfMemory(fmt::format("needs {:.2f} GB, of which {:.2f} GB are there; not run",
                                  static_cast<double>(bytes) * 1e-9,
                                  static_cast<double>(allowed) * 1e-9));
  }

  void plan_case(Candidate& c, Workload& workload, const ProblemGroup& group) {
    const std::string& algorithm = c.record.algorithm;
    c.attempt([&] {
      const PlanOptions plan_options{
          .backend = backend_, .algorithm = base_algorithm(algorithm), .threads = options_.threads};
      c.plans = prepare(group.problem, plan_options);
      c.describe_plans(group.problem);
      require_memory(tensor_bytes(group.problem) + c.plans.workspace_bytes());
      workload.reserve_workspace(c.plans.workspace_bytes());
      if (algorithm != "dynamic") return;
      report(0.1, group, "choosing a tile by measurement");
      Tuned tuned = tune(workload, plan_options, {.budget_s = effort_.search_s}, clock_);
      c.plans = std::move(tuned.plans);
      c.record.search = tuned.search;
      c.describe_plans(group.problem);
    });
  }

  double seconds_per_case() const {
    std::size_t cases = 0;
    for (const ProblemGroup& group : groups_) cases += group.algorithms.size();
    return options_.seconds > 0 ? options_.seconds / static_cast<double>(cases)
                                : effort_.default_seconds_per_case;
  }

  void time_cases(std::vector<Candidate>& candidates, Workload& workload,
                  const ProblemGroup& group) {
    std::vector<Candidate*> alive;
    std::vector<Variant> variants;
    for (Candidate& c : candidates) {
      if (!c.alive()) continue;
      alive.push_back(&c);
      variants.push_back({c.record.algorithm, [&] { workload.run(c.plans); },
                          [&] { return workload.time_s(c.plans); }});
    }
    MeasureOptions measuring{.interleave = options_.interleave, .seed = options_.seed + group_};
    measuring.stopping.budget_s = seconds_per_case();
    measuring.conditions = [this] { return conditions(); };
    const double begin = clock_.now_s();
    const double expected = measuring.stopping.budget_s * static_cast<double>(alive.size());
    measuring.on_sample = [&] {
      report(0.2 + 0.5 * std::min(1.0, (clock_.now_s() - begin) / expected), group, "timing");
    };
    const auto before = sensors::read_cpu_seconds();
    std::vector<Measurement> measured = measure(variants, measuring, clock_);
    const auto after = sensors::read_cpu_seconds();
    for (std::size_t i = 0; i < alive.size(); ++i) {
      if (measured[i].status != Status::ok) alive[i]->end(measured[i].status, measured[i].reason);
      alive[i]->samples = std::move(measured[i].samples);
      if (before && after)
        alive[i]->record.other_load_pct = sensors::other_load_pct(*before, *after);
    }
  }

  Conditions conditions() {
    const double now = clock_.now_s();
    if (now - conditions_time_ >= kConditionsPeriod) {
      conditions_ = {value_of(telemetry_.clock), value_of(telemetry_.temperature)};
      conditions_time_ = now;
    }
    return conditions_;
  }

  // What is measured one candidate at a time, after the timing.
  void examine(Candidate& c, Workload& workload, const ProblemGroup& group) {
    if (!c.alive()) return;
    report(0.75, group, c.record.algorithm + ": checking, memory, energy");
    c.attempt([&] {
      measure_energy_of(c, workload);
      measure_memory_of(c, workload, group.problem);
      check(c, workload);
    });
  }

  void measure_energy_of(Candidate& c, Workload& workload) {
    const SustainedEnergy energy = measure_energy(
        [&] { workload.run(c.plans); }, energy_window_s(telemetry_.energy), telemetry_, clock_);
    c.record.throttle = energy.throttle;
    c.record.utilization_pct = energy.utilization_pct;
    c.record.foreign_processes = foreign_processes(gpu_);
    if (!energy.energy_j) {
      for (const char* field :
           {"energy_j", "energy_uncertainty_j", "power_avg_w", "power_max_w", "gflop_per_j"}) {
        c.record.not_measured[field] = energy.reason;
      }
      if (!telemetry_.utilization.empty() && !energy.utilization_pct) {
        c.record.not_measured["utilization_pct"] = energy.reason;
      }
      if (!telemetry_.power_capped.empty() && !energy.throttle.power_pct) {
        c.record.not_measured["throttle"] = energy.reason;
      }
      return;
    }
    c.record.energy_j = energy.energy_j;
    c.record.energy_uncertainty_j = energy.uncertainty_j;
    c.record.power_avg_w = energy.power_avg_w;
    c.record.power_max_w = energy.power_max_w;
    c.record.power_sampled_w = energy.power_sampled_w;
    if (*energy.energy_j > 0)
      c.record.gflop_per_j = finite(c.record.flops * 1e-9 / *energy.energy_j);
    if (!energy.power_max_w)
      c.record.not_measured["power_max_w"] = "too few readings in the window";
  }

  void measure_memory_of(Candidate& c, Workload& workload, const Problem& problem) {
    if (telemetry_.on_gpu) {
      c.record.not_measured["memory_peak_bytes"] =
          "the growth of a GPU's memory is not measured; memory_bytes counts tensors and workspace";
      return;
    }
    workload.release_workspace();
    const MemoryGrowth growth = measure_growth([&] { workload.run_without_workspace(c.plans); });
    if (growth.bytes) {
      c.record.memory_peak_bytes = *growth.bytes + static_cast<std::int64_t>(tensor_bytes(problem));
    } else {
      c.record.not_measured["memory_peak_bytes"] = growth.reason;
    }
  }

  void check(Candidate& c, Workload& workload) {
    const CheckReport report =
        workload.check(c.plans, {.max_flops = effort_.check_flops, .seed = options_.seed});
    const TensorCheck& worst = report.worst();
    c.record.check = CheckVerdict{.ok = report.ok,
                                  .max_error = finite(worst.max_error),
                                  .bound = finite(worst.bound),
                                  .seed = options_.seed,
                                  .tensor = worst.name,
                                  .sampled = report.sampled};
    if (!report.ok) c.end(Status::failed, "wrong result: " + worst.name + ": " + worst.detail);
  }

  void finish(Candidate& c) const {
    CaseResult& record = c.record;
    if (!c.samples.empty()) {
      std::vector<double> ms;
      for (const Sample& sample : c.samples) ms.push_back(sample.duration_s * 1e3);
      const Summary s = summarize(ms);
      record.time_ms = TimeMs{s.median, s.min, s.p95, s.mad, s.n, s.mean, finite(s.half_width)};
      if (s.median > 0) record.tflops = finite(record.flops / (s.median * 1e-3) * 1e-12);
      record.temp_c = median_of(c.samples, &Sample::temp_c);
      if (const auto hz = median_of(c.samples, &Sample::clock_hz))
        (telemetry_.on_gpu ? record.sm_clock_mhz : record.cpu_clock_mhz) = *hz * 1e-6;
    }
    if (record.status == Status::ok) explain_nulls(record);
  }

  void explain_nulls(CaseResult& record) const {
    auto& why = record.not_measured;
    const char* const clock = telemetry_.on_gpu ? "sm_clock_mhz" : "cpu_clock_mhz";
    const auto& megahertz = telemetry_.on_gpu ? record.sm_clock_mhz : record.cpu_clock_mhz;
    if (!record.temp_c) why["temp_c"] = telemetry_.temperature.status.reason;
    if (!megahertz) why[clock] = telemetry_.clock.status.reason;
    if (!record.other_load_pct) why["other_load_pct"] = "'/proc/stat' tells no processor time";
    if (telemetry_.on_gpu) {
      why["cpu_clock_mhz"] = "this backend runs on a GPU";
    } else {
      why["sm_clock_mhz"] = "this backend runs on no GPU";
    }
    // Both are read while energy is measured, so that its reason may stand here already.
    if (!record.utilization_pct) {
      why.emplace("utilization_pct", telemetry_.utilization.status.reason);
    }
    if (!record.throttle.power_pct) why.emplace("throttle", telemetry_.power_capped.status.reason);
    std::vector<std::string> reasons;
    for (const auto& [field, reason] : why) {
      if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
        reasons.push_back(reason);
      }
    }
    record.reason = "not measured: " + fmt::format("{}", fmt::join(reasons, "; "));
  }

  void report(double within, const ProblemGroup& group, const std::string& what) const {
    if (!on_progress_) return;
    const auto total = static_cast<double>(groups_.size());
    on_progress_({.fraction = (static_cast<double>(group_) + within) / total,
                  .problem = static_cast<int>(group_) + 1,
                  .problems = static_cast<int>(groups_.size()),
                  .what = to_line(group.problem) + ": " + what});
  }

  const std::vector<ProblemGroup>& groups_;
  const StudyOptions& options_;
  std::string backend_;
  Effort effort_;
  const std::function<void(const Progress&)>& on_progress_;
  sensors::SystemClock clock_;
  GpuIdentity gpu_;
  Telemetry telemetry_;
  std::size_t group_ = 0;
  std::int64_t available_ = 0;
  Conditions conditions_;
  double conditions_time_ = -1;
};

}  // namespace

Study run_study(const std::vector<ProblemGroup>& groups, const StudyOptions& options,
                const std::function<void(const Progress&)>& on_progress) {
  for (const ProblemGroup& group : groups) {
    for (const std::string& algorithm : group.algorithms) {
      const auto& names = algorithm_names();
      if (std::find(names.begin(), names.end(), algorithm) == names.end()) {
        throw InvalidArgument("algorithm '" + algorithm +
                              "'; accepted: " + fmt::format("{}", fmt::join(names, ", ")));
      }
    }
  }
  return StudyRun(groups, options, on_progress).run();
}

}  // namespace dfa::bench
