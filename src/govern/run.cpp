#include "govern/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "dfa/problem.h"
#include "power/driver.h"
#include "power/pacer.h"
#include "sensors/nvml/meters.h"

namespace dfa::govern {
namespace {

constexpr double kSamplePeriod = 0.1;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();  // null in files
constexpr double kForeignPeriod = 1;  // the list of processes is looked at this often

Meter* first_of(const sensors::MeterSet& set) {
  return set.empty() ? nullptr : set.meters.front().get();
}

sensors::MeterSet open_second_mean(const GpuIdentity& gpu, const Clock& clock) {
  if (gpu.pci_id.empty()) return {{}, Verdict::no("no GPU")};
  const nvml::OpenedLibrary opened = nvml::open_library();
  if (!opened.library) return {{}, opened.status};
  const auto device = nvml::find_device(opened.library, gpu.pci_id);
  if (!device.value) return {{}, device.status};
  return nvml::open_meter(*device.value, nvml::Gauge::power_average, clock);
}

// Decisions, written by the governor's thread and read by the launching one.
class Decisions {
 public:
  void add(power::Decision decision, double begin_s) {
    decision.time_s -= begin_s;
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(decision));
  }
  power::Decision last() const {
    const std::lock_guard lock(mutex_);
    return all_.empty() ? power::Decision{} : all_.back();
  }
  std::vector<power::Decision> take() { return std::move(all_); }

 private:
  mutable std::mutex mutex_;
  std::vector<power::Decision> all_;
};

// Samples ten times a second what the sensors say.
class Sampling {
 public:
  Sampling(const GpuIdentity& gpu, const Clock& clock)
      : sensors_(bench::open_telemetry(gpu, clock)), second_(open_second_mean(gpu, clock)) {}

  simulate::Sample take(double time_s, double work, const power::Policy& policy) {
    simulate::Sample sample{.time_s = time_s};
    sample.power_w = bench::value_of(sensors_.power).value_or(kNotMeasured);
    recent_.push_back(sample.power_w);
    if (recent_.size() > 10) recent_.erase(recent_.begin());
    double sum = 0;
    for (const double w : recent_) sum += w;
    sample.second_w = bench::value_of(second_).value_or(sum / static_cast<double>(recent_.size()));
    sample.temp_c = bench::value_of(sensors_.temperature).value_or(kNotMeasured);
    sample.clock_hz = bench::value_of(sensors_.clock).value_or(kNotMeasured);
    sample.work_per_s = (work - work_) / std::max(1e-9, time_s - time_s_);
    sample.cap_w = policy.goal == power::Goal::power_cap ? policy.value : 0;
    sample.cap_c = policy.goal == power::Goal::temp_cap ? policy.value : 0;
    work_ = work;
    time_s_ = time_s;
    return sample;
  }

 private:
  bench::Telemetry sensors_;
  sensors::MeterSet second_;
  std::vector<double> recent_;
  double work_ = 0, time_s_ = 0;
};

power::Setup setup_of(const std::vector<Candidate>& candidates, const RunOptions& options,
                      const GpuIdentity& gpu, std::optional<double> idle_w) {
  power::Setup setup;
  for (const Candidate& candidate : candidates) setup.points.push_back(candidate.point);
  setup.idle_w = idle_w.value_or(0);
  setup.max_error = options.max_error;
  const auto facts = bench::describe_gpu(gpu);
  setup.limit_w = facts && facts->power_limit_w ? *facts->power_limit_w : 1e5;
  return setup;
}

// Multiprocessors where some configuration takes a budget of them, and gaps.
Levers levers_of(const std::vector<Candidate>& candidates, bool sm_budget) {
  Levers levers;
  for (const Candidate& candidate : candidates) {
    if (sm_budget) levers.sm_count = std::max(levers.sm_count, candidate.plans.sms());
  }
  return levers;
}

simulate::Scenario describe(const bench::Workload& workload, const RunOptions& options,
                            const GpuIdentity& gpu) {
  simulate::Scenario scenario;
  scenario.name = to_line(workload.problem());
  scenario.card.name = gpu.name.empty() ? "this processor" : gpu.name;
  scenario.policy = options.sections.front().policy;
  scenario.seconds = 0;
  for (const Section& section : options.sections) {
    if (scenario.seconds > 0) {
      scenario.events.push_back(
          {.at_s = scenario.seconds, .note = to_text(section.policy), .policy = section.policy});
    }
    scenario.seconds += section.seconds;
  }
  return scenario;
}

}  // namespace

Governed run_governed(bench::Workload& workload, const std::vector<Candidate>& candidates,
                      const RunOptions& options, const GpuIdentity& gpu,
                      std::optional<double> idle_w, Clock& clock) {
  Governed result;
  result.scenario = describe(workload, options, gpu);
  const bench::Telemetry telemetry = bench::open_telemetry(gpu, clock);
  const sensors::MeterSet second = open_second_mean(gpu, clock);
  power::Pacer pacer(levers_of(candidates, options.sm_budget));
  power::LentLimit lent(pacer, options.limit.value_or(power::Limit{}));
  Actuator& actuator = options.limit ? static_cast<Actuator&>(lent) : pacer;
  power::Governor governor(setup_of(candidates, options, gpu, idle_w), result.scenario.policy,
                           {.power = first_of(telemetry.power),
                            .mean = first_of(second),
                            .energy = first_of(telemetry.energy),
                            .temperature = first_of(telemetry.temperature),
                            .capped = first_of(telemetry.power_capped)},
                           actuator);
  for (const Section& section : options.sections) {
    if (const Verdict ok = check(governor.setup(), section.policy); !ok) {
      throw Unsupported(ok.reason);
    }
  }
  result.run.setup = governor.setup();
  Decisions decisions;
  Sampling sampling(gpu, clock);
  const double begin = clock.now_s();
  power::Driver driver(governor, clock,
                       [&](const power::Decision& made) { decisions.add(made, begin); });
  driver.start();
  power::Policy policy = result.scenario.policy;
  auto next = result.scenario.events.begin();
  double sampled_s = 0, listed_s = 0, work = 0;
  power::Activity activity;
  for (double now = 0; now < result.scenario.seconds; now = clock.now_s() - begin) {
    if (options.interrupted && options.interrupted()) break;
    if (next != result.scenario.events.end() && next->at_s <= now) {
      policy = *next++->policy;
      driver.set_policy(policy);
    }
    const Candidate& candidate = candidates[pacer.point()];
    workload.limit_sms(candidate.point.takes_sm_budget ? pacer.sms() : 0);
    const double start = clock.now_s();
    workload.run(candidate.plans, candidate.batch);
    const double took = clock.now_s() - start;
    work += candidate.plans.flops() * candidate.batch;
    result.calls += candidate.batch;
    activity.call_s = took / candidate.batch;
    if (now - listed_s >= kForeignPeriod) {
      activity.foreign = bench::foreign_processes(gpu).value_or(0) > 0;
      listed_s = now;
    }
    driver.set_activity(activity);
    if (now - sampled_s >= kSamplePeriod) {
      result.run.samples.push_back(sampling.take(now, work, policy));
      sampled_s = now;
      if (options.on_sample) options.on_sample(result.run.samples.back(), decisions.last());
    }
    pacer.pause(took, clock);
  }
  workload.limit_sms(0);
  result.governor_share = driver.busy_share();
  driver.stop();
  result.run.decisions = decisions.take();
  result.run.work = work;
  for (const simulate::Sample& sample : result.run.samples) {
    result.run.energy_j += sample.second_w * kSamplePeriod;
  }
  return result;
}

}  // namespace dfa::govern
