#include "run/governed.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "dfa/problem.h"
#include "power/driver.h"
#include "power/pacer.h"
#include "run/sampling.h"

namespace dfa::run {
namespace {

// Decisions, written by the governor's thread and read by the sensors'.
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

power::Setup setup_of(const std::vector<Load>& loads, const RunOptions& options,
                      const GpuIdentity& gpu, std::optional<double> idle_w) {
  power::Setup setup;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    for (const Candidate& candidate : loads[i].candidates) {
      setup.points.push_back(candidate.point);
      setup.points.back().load = static_cast<int>(i);
    }
  }
  setup.idle_w = idle_w.value_or(0);
  setup.max_error = options.max_error.value_or(setup.max_error);
  const auto facts = measure::describe_gpu(gpu);
  setup.limit_w = facts && facts->power_limit_w ? *facts->power_limit_w : 1e5;
  return setup;
}

// Multiprocessors where some configuration takes a budget of them, and gaps.
Levers levers_of(const std::vector<Load>& loads, bool sm_budget) {
  Levers levers{.sm_step = 4};  // small grids run in clusters of four
  for (const Load& load : loads) {
    for (const Candidate& candidate : load.candidates) {
      if (sm_budget) levers.sm_count = std::max(levers.sm_count, candidate.plans.sms());
    }
  }
  return levers;
}

power::TraceHead describe(const std::vector<Load>& loads, const RunOptions& options,
                          const GpuIdentity& gpu) {
  power::TraceHead head;
  for (const Load& load : loads) {
    head.name += (head.name.empty() ? "" : "; ") + to_line(load.buffers.problem());
  }
  head.card = gpu.name.empty() ? "this processor" : gpu.name;
  head.policy = options.sections.front().policy;
  head.seconds = 0;
  for (const Section& section : options.sections) {
    if (head.seconds > 0) {
      head.events.push_back(
          {.at_s = head.seconds, .note = to_text(section.policy), .policy = section.policy});
    }
    head.seconds += section.seconds;
  }
  if (loads.size() < 2 || options.load_s <= 0) return head;
  std::size_t load = 0;
  for (double at = options.load_s; at < head.seconds; at += options.load_s) {
    load = (load + 1) % loads.size();
    head.events.push_back({.at_s = at, .note = to_line(loads[load].buffers.problem())});
  }
  std::stable_sort(head.events.begin(), head.events.end(),
                   [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  return head;
}

// The load that runs, and its points among all.
class Loads {
 public:
  Loads(const std::vector<Load>& all, double seconds) : all_(all), seconds_(seconds) {}

  // Whose turn it is; true where that changed.
  bool turn(double time_s) {
    if (seconds_ <= 0 || time_s < next_s()) return false;
    ++turns_;
    first_ += all_[now_].candidates.size();
    now_ = (now_ + 1) % all_.size();
    if (now_ == 0) first_ = 0;
    return true;
  }

  std::size_t now() const { return now_; }
  const Load& load() const { return all_[now_]; }
  // Of this load until the governor has chosen among its points: the first.
  std::size_t point(std::size_t chosen) const {
    return chosen >= first_ && chosen < first_ + load().candidates.size() ? chosen : first_;
  }
  const Candidate& candidate(std::size_t point) const { return load().candidates[point - first_]; }

 private:
  double next_s() const { return seconds_ * (turns_ + 1); }

  const std::vector<Load>& all_;
  double seconds_;
  int turns_ = 0;
  std::size_t now_ = 0, first_ = 0;
};

// Recomputes rows of what a call left, now and then.
class Watch {
 public:
  Watch(const std::vector<Load>& loads, const RunOptions& options, Governed& result)
      : guard_(result.guard) {
    if (!options.max_error) return;
    try {
      for (const Load& load : loads) checks_.push_back(load.buffers.rows_check(kGuardRows));
    } catch (const Unsupported& error) {
      result.unwatched = error.what();
      checks_.clear();
    }
  }

  void look(std::size_t load, std::size_t point, double time_s, Clock& clock,
            const std::vector<Load>& loads, power::Activity& activity) {
    if (checks_.empty() || !guard_.due(time_s)) return;
    const double start = clock.now_s();
    const double error =
        loads[load].buffers.error(*checks_[load], static_cast<std::uint64_t>(guard_.checks));
    guard_.add(time_s, clock.now_s() - start, error);
    activity.error = power::SeenError{point, error};
  }

 private:
  power::Guard& guard_;
  std::vector<std::unique_ptr<RowsCheck>> checks_;
};

}  // namespace

power::Telemetry meters_of(const measure::Telemetry& telemetry) {
  return {.power = telemetry.power.first(),
          .energy = telemetry.energy.all(),
          .temperature = telemetry.temperature.first(),
          .capped = telemetry.power_capped.first()};
}

Governed run_governed(const std::vector<Load>& loads, const RunOptions& options,
                      const GpuIdentity& gpu, std::optional<double> idle_w, Clock& clock) {
  Governed result;
  result.head = describe(loads, options, gpu);
  const measure::Telemetry telemetry = measure::open_telemetry(gpu, clock);
  const sensors::MeterSet second = open_second_mean(gpu, clock);
  power::Pacer pacer(levers_of(loads, options.sm_budget));
  power::LentLevers actuator(pacer, options.lent);
  power::Telemetry meters = meters_of(telemetry);
  meters.mean = second.first();
  power::Governor governor(setup_of(loads, options, gpu, idle_w), result.head.policy, meters,
                           actuator);
  for (const Section& section : options.sections) {
    if (const Verdict ok = check(governor.setup(), section.policy); !ok) {
      throw Unsupported(ok.reason);
    }
  }
  result.trace.setup = governor.setup();
  Decisions decisions;
  Watch watch(loads, options, result);
  Sampling sampling(gpu, clock, [&](const power::TraceSample& sample) {
    if (options.on_sample) options.on_sample(sample, decisions.last());
  });
  const double begin = clock.now_s();
  power::Driver driver(governor, clock,
                       [&](const power::Decision& made) { decisions.add(made, begin); });
  driver.start();
  sampling.start(begin, result.head.policy);
  auto next = result.head.events.begin();
  Loads turns(loads, loads.size() > 1 ? options.load_s : 0);
  power::Activity activity;
  power::Gaps gaps(pacer);
  for (double now = 0; now < result.head.seconds; now = clock.now_s() - begin) {
    if (options.interrupted && options.interrupted()) break;
    for (; next != result.head.events.end() && next->at_s <= now; ++next) {
      if (!next->policy) continue;
      driver.set_policy(*next->policy);
      sampling.set_policy(*next->policy);
    }
    if (turns.turn(now)) {
      activity.load = static_cast<int>(turns.now());
      driver.set_activity(activity);
    }
    const std::size_t point = turns.point(pacer.point());
    const Candidate& candidate = turns.candidate(point);
    measure::ProblemBuffers& buffers = turns.load().buffers;
    buffers.limit_sms(candidate.point.takes_sm_budget ? pacer.sms() : 0);
    const double start = clock.now_s();
    buffers.run(candidate.plans, candidate.batch);
    const double took = clock.now_s() - start;
    sampling.add_work(candidate.plans.flops() * candidate.batch);
    result.calls += candidate.batch;
    activity.call_s = took / candidate.batch;
    activity.foreign = sampling.foreign();
    watch.look(turns.now(), point, now, clock, loads, activity);
    driver.set_activity(activity);
    gaps.pause(took, clock);
  }
  for (const Load& load : loads) load.buffers.limit_sms(0);
  result.seconds = clock.now_s() - begin;
  result.governor_share = driver.busy_share();
  driver.stop();
  result.trace.samples = sampling.stop();
  result.trace.decisions = decisions.take();
  result.trace.work = sampling.work();
  for (const power::TraceSample& sample : result.trace.samples) {
    result.trace.energy_j += sample.second_w * Sampling::kPeriod;
  }
  return result;
}

}  // namespace dfa::run
