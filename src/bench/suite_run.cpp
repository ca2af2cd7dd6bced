#include "bench/suite_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "attention/registry.h"
#include "bench/case.h"
#include "bench/cudnn_peer.h"
#include "bench/machine.h"
#include "bench/own_implementation.h"
#include "bench/torch_peer.h"
#include "measure/tuner.h"
#include "sensors/cpu_load.h"
#include "sensors/system_clock.h"
#include "spec/config_text.h"
#include "spec/flops.h"
#include "spec/standard_config.h"

namespace dfa::bench {
namespace {

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

// Runs of a GPU are about this long at the rate of its faster kernels: what a host takes to launch
// the first call, Python above all, is then no part of what is told as the kernel's time.
constexpr double kRunSeconds = 2e-3;
constexpr double kFastFlops = 4e14;
constexpr double kMostCalls = 32;

int calls_for(double flops) {
  return static_cast<int>(std::clamp(kRunSeconds * kFastFlops / flops, 1.0, kMostCalls));
}

Algorithm base_algorithm(const std::string& name) {
  return name == "standard" || name == "stored" ? Algorithm::standard : Algorithm::flash;
}

class SuiteRunner {
 public:
  SuiteRunner(const std::vector<ProblemGroup>& groups, const SuiteOptions& options,
              const std::function<void(const Progress&)>& on_progress,
              const std::function<void(const SuiteRun&)>& on_problem)
      : groups_(groups),
        options_(options),
        backend_(options.backend == "auto" ? default_backend()
                                           : find_backend(options.backend).name()),
        effort_(effort_of(options.scale)),
        on_progress_(on_progress),
        on_problem_(on_problem),
        gpu_(find_backend(backend_).device().identity()),
        telemetry_(measure::open_telemetry(gpu_, clock_)) {
    CaseStatus ignored{};
    const auto cudnn =
        std::count(options_.peers.begin(), options_.peers.end(), CudnnPeer::kAlgorithm);
    if (cudnn < static_cast<std::ptrdiff_t>(options_.peers.size())) {
      guarded([&] { torch_ = std::make_unique<TorchPeer>(find_backend(backend_)); }, ignored,
              no_torch_);
    }
    if (cudnn > 0) {
      guarded([&] { cudnn_ = std::make_unique<CudnnPeer>(find_backend(backend_)); }, ignored,
              no_cudnn_);
    }
  }

  SuiteRun run() {
    SuiteRun suite;
    suite.result.machine = describe_machine(options_.threads);
    suite.result.machine.gpu = measure::describe_gpu(gpu_);
    suite.result.git = describe_source();
    suite.result.scale = name_of(options_.scale);
    for (group_ = 0; group_ < groups_.size(); ++group_) {
      if (options_.interrupted && options_.interrupted()) break;
      for (Case& one : run_group(groups_[group_])) {
        suite.result.cases.push_back(std::move(one.record));
        suite.samples.push_back(std::move(one.samples));
      }
      if (on_problem_ && group_ + 1 < groups_.size()) on_problem_(suite);
    }
    return suite;
  }

 private:
  std::vector<Case> run_group(const ProblemGroup& group) {
    std::vector<Case> cases = begin(group);
    report(0, group, "preparing");
    allowed_ = measure::allowed_bytes(find_backend(backend_));
    std::unique_ptr<measure::ProblemBuffers> buffers = make_workload(group.problem, cases);
    if (buffers) {
      for (Case& c : cases) {
        if (!c.peer) plan_case(c, *buffers, group);
      }
      enter(cases, *buffers);
      time_cases(cases, group);
      // One right behind the other, before anything lets a GPU rest.
      for (Case& c : cases) measure_energy(c, group);
      for (Case& c : cases) examine(c, group);
    }
    for (Case& c : cases) c.finish(telemetry_);
    drop_peers();
    return cases;
  }

  std::vector<Case> begin(const ProblemGroup& group) const {
    std::vector<Case> cases;
    for (const Launch launch : group.launches) {
      const bool of_torch = is_compiled(launch);  // what C++ calls is compiled already
      for (const std::string& algorithm : group.algorithms) {
        if (!of_torch) cases.push_back(make_case(group, algorithm, backend_, launch));
      }
      for (const std::string& algorithm : options_.peers) {
        const bool cudnn = algorithm == CudnnPeer::kAlgorithm;
        if (cudnn && of_torch) continue;
        cases.push_back(make_case(group, algorithm, cudnn ? "cudnn" : "torch", launch));
        cases.back().peer = true;
      }
    }
    return cases;
  }

  Case make_case(const ProblemGroup& group, const std::string& algorithm,
                 const std::string& backend, Launch launch) const {
    const Problem& p = group.problem;
    Case one{.record = {}, .launch = launch};
    CaseResult& record = one.record;
    record.suite = group.suite;
    record.problem = to_line(p);
    record.algorithm = algorithm;
    record.backend = backend;
    record.precision = name_of(p.dtype);
    record.launch = name_of(launch);
    record.seed = options_.seed;
    record.sm_budget = options_.sm_budget;
    record.flops = asked_flops(p);
    record.calls_per_run = group.calls > 0     ? group.calls
                           : telemetry_.on_gpu ? calls_for(record.flops)
                                               : 1;
    return one;
  }

  // The tensors all cases share, or nothing when they cannot be had.
  std::unique_ptr<measure::ProblemBuffers> make_workload(const Problem& problem,
                                                         std::vector<Case>& cases) {
    CaseStatus status = CaseStatus::ok;
    std::string reason;
    std::unique_ptr<measure::ProblemBuffers> buffers;
    guarded(
        [&] {
          require_memory(measure::tensor_bytes(problem));
          buffers = std::make_unique<measure::ProblemBuffers>(problem, backend_, options_.seed);
          buffers->limit_sms(options_.sm_budget);
        },
        status, reason);
    if (!buffers) {
      for (Case& one : cases) one.end(status, reason);
    }
    return buffers;
  }

  void require_memory(std::size_t bytes) const {
    if (!allowed_ || static_cast<std::int64_t>(bytes) <= *allowed_) return;
    throw OutOfMemory(fmt::format("needs {:.2f} GB, of which {:.2f} GB are there; not run",
                                  static_cast<double>(bytes) * 1e-9,
                                  static_cast<double>(*allowed_) * 1e-9));
  }

  void plan_case(Case& c, measure::ProblemBuffers& buffers, const ProblemGroup& group) {
    const std::string& algorithm = c.record.algorithm;
    c.attempt([&] {
      PlanOptions plan_options{
          .backend = backend_, .algorithm = base_algorithm(algorithm), .threads = options_.threads};
      if (algorithm == "flash" && group.static_flash && has_hopper()) {
        plan_options.config = "target=cuda_sm80";
      }
      if (algorithm == "stored") {
        plan_options.config = to_text(StandardConfig{Probabilities::stored});
      }
      const bool others = names_other_pass(options_.config, group.problem.pass);
      if (algorithm == "flash" && !options_.config.empty() && !others) {
        plan_options.config = options_.config;
      }
      c.plans = measure::prepare(group.problem, plan_options);
      c.describe_plans(group.problem);
      require_memory(measure::tensor_bytes(group.problem) + c.plans.memory_bytes());
      buffers.reserve(c.plans);
      if (algorithm != "dynamic") return;
      report(0.1, group, "choosing a tile by measurement");
      measure::Tuned tuned =
          measure::tune(buffers, plan_options, {.budget_s = effort_.search_s}, clock_);
      c.plans = std::move(tuned.plans);
      c.record.search = tuned.search;
      c.describe_plans(group.problem);
    });
  }

  bool has_hopper() const { return find_backend(backend_).limits().highest == Target::cuda_sm90; }

  // Everybody makes ready to run: graphs are recorded, peers get the tensors.
  void enter(std::vector<Case>& cases, measure::ProblemBuffers& buffers) {
    CaseStatus loaded = CaseStatus::unsupported;
    std::string reason = no_torch_;
    if (torch_) {
      loaded = CaseStatus::ok;
      guarded([&] { torch_->load(buffers); }, loaded, reason);
    }
    for (Case& c : cases) {
      if (!c.alive()) continue;
      if (!c.peer) {
        c.attempt([&] {
          c.implementation = std::make_unique<OwnImplementation>(buffers, c.plans, c.launch,
                                                                 c.record.calls_per_run);
        });
        continue;
      }
      if (c.record.algorithm == CudnnPeer::kAlgorithm) {
        enter_cudnn(c, buffers);
        continue;
      }
      if (loaded != CaseStatus::ok) {
        c.end(loaded, reason);
        continue;
      }
      c.record.origin = "default";
      c.record.why = torch_->describe(c.record.algorithm);
      c.attempt([&] {
        c.record.sm_budget = 0;
        c.implementation =
            torch_->implementation(c.record.algorithm, c.launch, c.record.calls_per_run);
      });
    }
  }

  void enter_cudnn(Case& c, measure::ProblemBuffers& buffers) {
    if (!cudnn_) return c.end(CaseStatus::unsupported, no_cudnn_);
    c.record.origin = "default";
    c.record.why = cudnn_->version() + ", called through its graph interface";
    c.attempt([&] {
      c.record.sm_budget = 0;
      c.implementation = cudnn_->implementation(buffers, c.launch, c.record.calls_per_run);
    });
  }

  // A peer that has ended is a reason for the cases to come.
  void drop_peers() {
    CaseStatus status = CaseStatus::ok;
    if (torch_ && !guarded([&] { torch_->drop(); }, status, no_torch_)) torch_.reset();
  }

  double seconds_per_case() const {
    std::size_t cases = 0;
    for (const ProblemGroup& group : groups_) {
      cases += (group.algorithms.size() + options_.peers.size()) * group.launches.size();
    }
    return options_.seconds > 0 ? options_.seconds / static_cast<double>(cases)
                                : effort_.default_seconds_per_case;
  }

  void time_cases(std::vector<Case>& cases, const ProblemGroup& group) {
    std::vector<Case*> alive;
    std::vector<Variant> variants;
    for (Case& c : cases) {
      if (!c.alive()) continue;
      alive.push_back(&c);
      variants.push_back({c.record.algorithm, [&] { c.implementation->run(1); },
                          [&] { return c.implementation->time_s(); }});
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
      if (measured[i].status != CaseStatus::ok)
        alive[i]->end(measured[i].status, measured[i].reason);
      alive[i]->samples = std::move(measured[i].samples);
      for (Sample& sample : alive[i]->samples) sample.duration_s /= alive[i]->record.calls_per_run;
      if (before && after)
        alive[i]->record.other_load_pct = sensors::other_load_pct(*before, *after);
    }
  }

  Conditions conditions() {
    const double now = clock_.now_s();
    if (now - conditions_time_ >= kConditionsPeriod) {
      conditions_ = {measure::value_of(telemetry_.clock),
                     measure::value_of(telemetry_.temperature)};
      conditions_time_ = now;
    }
    return conditions_;
  }

  // What is measured one case at a time, after the timing.
  void measure_energy(Case& c, const ProblemGroup& group) {
    if (!c.alive()) return;
    report(0.75, group, c.record.algorithm + ": energy");
    c.attempt([&] {
      options_.energy ? c.measure_energy(telemetry_, clock_, options_.energy_seconds)
                      : c.no_energy(telemetry_, "energy was not asked for");
    });
  }

  void examine(Case& c, const ProblemGroup& group) {
    if (!c.alive()) return;
    report(0.85, group, c.record.algorithm + ": checking, memory");
    c.attempt([&] {
      c.record.foreign_processes = measure::foreign_processes(gpu_, torch_ ? 1 : 0);
      if (c.plans.forward || c.plans.backward) c.record.why = c.plans.why();  // kernels have run
      c.measure_memory(group.problem);
      c.check({.max_flops = effort_.check_flops, .seed = options_.seed});
    });
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
  const SuiteOptions& options_;
  std::string backend_;
  Effort effort_;
  const std::function<void(const Progress&)>& on_progress_;
  const std::function<void(const SuiteRun&)>& on_problem_;
  sensors::SystemClock clock_;
  GpuIdentity gpu_;
  measure::Telemetry telemetry_;
  std::size_t group_ = 0;
  std::optional<std::int64_t> allowed_;  // bytes for tensors and workspace
  std::unique_ptr<TorchPeer> torch_;
  std::string no_torch_;  // why there is none where one was asked for, likewise below
  std::unique_ptr<CudnnPeer> cudnn_;
  std::string no_cudnn_;
  Conditions conditions_;
  double conditions_time_ = -1;
};

void require_torch_where_compiled(const ProblemGroup& group,
                                  const std::vector<std::string>& peers) {
  const auto compiled = std::find_if(group.launches.begin(), group.launches.end(), is_compiled);
  const auto& torch = TorchPeer::algorithms();
  if (compiled == group.launches.end() ||
      std::find_first_of(peers.begin(), peers.end(), torch.begin(), torch.end()) != peers.end()) {
    return;
  }
  throw InvalidArgument(fmt::format(
      "launch '{}' is of PyTorch's peers; accepted with --peers torch", name_of(*compiled)));
}

}  // namespace

SuiteRun run_suite(const std::vector<ProblemGroup>& groups, const SuiteOptions& options,
                   const std::function<void(const Progress&)>& on_progress,
                   const std::function<void(const SuiteRun&)>& on_problem) {
  for (const ProblemGroup& group : groups) {
    require_torch_where_compiled(group, options.peers);
    for (const std::string& algorithm : group.algorithms) {
      const auto& names = algorithm_names();
      if (std::find(names.begin(), names.end(), algorithm) == names.end()) {
        throw InvalidArgument("algorithm '" + algorithm +
                              "'; accepted: " + fmt::format("{}", fmt::join(names, ", ")));
      }
    }
  }
  return SuiteRunner(groups, options, on_progress, on_problem).run();
}

}  // namespace dfa::bench
