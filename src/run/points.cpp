#include "run/points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/registry.h"
#include "dfa/error.h"
#include "measure/statistics.h"
#include "measure/tuner.h"
#include "power/pacer.h"
#include "spec/config_text.h"
#include "spec/fp32x3.h"
#include "spec/lengths.h"
#include "spec/less_exact.h"

namespace dfa::run {
namespace {

constexpr double kBatchSeconds = 1e-3;
constexpr double kHalf = 0.5;
constexpr double kCheckFlops = 2e9;  // of fp64 on the host, a sample of a larger problem

// What a stretch of repeated calls showed.
struct Stretch {
  double call_s = 0;
  double spread = 0;  // of the call's time, relative
  double duty = 1;    // that was kept
  std::optional<double> power_w;
  std::optional<double> clock_hz;
  double clock_most_hz = 0;
};

// Distinct readings of a sensor: repeated values are the same tick.
class Mean {
 public:
  void add(const std::optional<double>& value) {
    if (!value || *value == last_) return;
    last_ = *value;
    sum_ += *value;
    ++count_;
  }
  std::optional<double> value() const {
    return count_ > 0 ? std::optional(sum_ / count_) : std::nullopt;
  }

 private:
  double last_ = -1, sum_ = 0;
  int count_ = 0;
};

Stretch run_stretch(measure::ProblemBuffers& buffers, const Candidate& candidate, double duty,
                    const PointOptions& options, const measure::Telemetry& telemetry,
                    Clock& clock) {
  power::Pacer pacer;
  pacer.apply({.point = 0, .sms = 0, .duty = duty});
  power::Gaps gaps(pacer);
  std::vector<double> times;
  Mean power, hertz;
  double busy = 0, most = 0;
  const double begin = clock.now_s();
  double from = begin;
  while (clock.now_s() - begin < options.settle_s + options.seconds || times.size() < 3) {
    const bool settled = clock.now_s() - begin >= options.settle_s;
    if (!settled) {
      from = clock.now_s();
      busy = 0;
    }
    const double start = clock.now_s();
    buffers.run(candidate.plans, candidate.batch);
    const double took = clock.now_s() - start;
    busy += took;
    if (settled) {
      times.push_back(took / candidate.batch);
      power.add(measure::value_of(telemetry.power));
      const auto now_hz = measure::value_of(telemetry.clock);
      hertz.add(now_hz);
      most = std::max(most, now_hz.value_or(0));
    }
    gaps.pause(took, clock);
  }
  const measure::Summary summary = measure::summarize(times);
  return {summary.median,
          summary.mad / summary.median,
          busy / (clock.now_s() - from),
          power.value(),
          hertz.value(),
          most};
}

void measure(measure::ProblemBuffers& buffers, Candidate& candidate, const PointOptions& options,
             const measure::Telemetry& telemetry, std::optional<double> idle_w, Clock& clock) {
  const Stretch full = run_stretch(buffers, candidate, 1, options, telemetry, clock);
  OperatingPoint& point = candidate.point;
  candidate.spread = full.spread;
  point.time_s = full.call_s;
  point.power_w = full.power_w;
  if (full.power_w) point.energy_j = *full.power_w * full.call_s / full.duty;
  if (!full.power_w || !idle_w) return;
  const Stretch half = run_stretch(buffers, candidate, kHalf, options, telemetry, clock);
  if (!half.power_w) return;
  point.dynamic_w = std::max((*half.power_w - *idle_w) / half.duty, *full.power_w - *idle_w);
  if (full.clock_hz && half.clock_most_hz > 0) {
    point.clock_share = std::min(1.0, *full.clock_hz / half.clock_most_hz);
  }
}

}  // namespace

std::optional<double> idle_power(const measure::Telemetry& telemetry, Clock& clock,
                                 double seconds) {
  if (telemetry.power.empty()) return std::nullopt;
  clock.sleep_s(1);  // what ran before fades out of the readings
  std::vector<double> values;
  for (const double begin = clock.now_s(); clock.now_s() - begin < seconds; clock.sleep_s(0.05)) {
    if (const auto value = measure::value_of(telemetry.power)) values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  return measure::summarize(values).median;
}

// One text fits both passes of a problem where both are of bf16 parts.
static bool are_split(const measure::PassPlans& plans) {
  return plans.forward && plans.backward && plans.forward->algorithm == Algorithm::flash &&
         is_fp32x3(parse_config(plans.forward->config, ForwardConfig{})) &&
         is_fp32x3(parse_config(plans.backward->backward_config, BackwardConfig{}));
}

std::string label_of(const measure::PassPlans& plans) {
  if (are_split(plans)) return kFp32x3Text;
  const Plan& plan = plans.any();
  return plan.backward_config.empty() ? plan.config : plan.backward_config;
}

int batch_for(double call_s) {
  return std::clamp(static_cast<int>(std::lround(kBatchSeconds / call_s)), 1, 1000);
}

// The problem's own precision alone where the backend has no less exact one, or where no text of a
// configuration tells the two apart, by which profiles know their rows.
static void add_less_exact(CandidatePlans& all, const Problem& problem,
                           const PointOptions& options) {
  const std::optional<DType> products = less_exact(problem);
  if (!products) return;
  Problem in_type = problem;
  in_type.dtype = *products;
  try {
    measure::PassPlans plans = measure::prepare(in_type, {.backend = options.backend});
    if (label_of(plans) == label_of(all.plans[0])) return;
    const std::int64_t needs = memory_of(problem, plans);
    const std::int64_t allowed = memory_for_plans(options.backend, options.memory_bytes);
    if (quantises(problem.dtype, *products) && needs > allowed) {
      all.refused.push_back(fmt::format(
          "'{}' takes {:.4g} MB beside the tensors, of which {:.4g} MB may be had: left out",
          to_line(in_type), static_cast<double>(needs) * 1e-6,
          static_cast<double>(allowed) * 1e-6));
      return;
    }
    all.plans.push_back(std::move(plans));
  } catch (const Unsupported& error) {
    all.refused.push_back(fmt::format("'{}': {}", to_line(in_type), error.what()));
  }
}

std::int64_t memory_for_plans(const std::string& backend, std::optional<std::int64_t> asked) {
  if (asked) return *asked;
  return measure::allowed_bytes(find_backend(backend))
      .value_or(std::numeric_limits<std::int64_t>::max());
}

// The plan that keeps P from the forward for the backward, or why there is none.
static void add_stored(CandidatePlans& all, const Problem& problem, const PointOptions& options) {
  auto plans = measure::stored_plans(problem, {.backend = options.backend});
  if (!plans) return;
  const auto needs = static_cast<std::int64_t>(plans->memory_bytes());
  const std::int64_t allowed = memory_for_plans(options.backend, options.memory_bytes);
  if (needs <= allowed) {
    all.plans.push_back(*std::move(plans));
    return;
  }
  all.refused.push_back(fmt::format(
      "stored probabilities of '{}' take {:.4g} MB beside the tensors, of which {:.4g} MB may be "
      "had: recomputed",
      to_line(problem), static_cast<double>(needs) * 1e-6, static_cast<double>(allowed) * 1e-6));
}

CandidatePlans candidate_plans(const Problem& problem, const PointOptions& options) {
  require_plain(problem, "operating points");
  CandidatePlans found{.plans = {measure::prepare(problem, {.backend = options.backend})}};
  std::vector<measure::PassPlans>& all = found.plans;
  if (options.less_exact) add_less_exact(found, problem, options);
  if (problem.pass == Pass::forward_backward) {  // a tile's text fits one pass
    if (static_cast<int>(all.size()) < options.candidates) add_stored(found, problem, options);
    return found;
  }
  const Plan base = all[0].any();
  for (const std::string& text :
       measure::tile_candidates(base, find_backend(base.backend).limits())) {
    if (static_cast<int>(all.size()) >= options.candidates) break;
    if (text == base.config || text == base.backward_config) continue;
    all.push_back(measure::prepare(problem, {.backend = options.backend, .config = text}));
  }
  return found;
}

std::int64_t memory_of(const Problem& problem, const measure::PassPlans& plans) {
  return static_cast<std::int64_t>(plans.memory_bytes() + measure::quantised_bytes(problem, plans));
}

std::optional<Candidate> measure_candidate(measure::ProblemBuffers& buffers,
                                           const measure::PassPlans& plans,
                                           const PointOptions& options,
                                           const measure::Telemetry& telemetry,
                                           std::optional<double> idle_w, Clock& clock) {
  Candidate candidate;
  candidate.plans = plans;
  candidate.point.label = label_of(plans);
  candidate.point.dtype = plans.any().problem.dtype;
  candidate.point.memory_bytes = memory_of(buffers.problem(), plans);
  candidate.point.stores_probabilities = plans.probabilities_bytes() > 0;
  candidate.point.takes_sm_budget = plans.sms() > 0;
  const CheckOptions options_of_check{.max_flops = kCheckFlops};
  CheckReport check = buffers.check(plans, options_of_check);
  if (!check.ok) return std::nullopt;
  if (quantises(buffers.problem().dtype, candidate.point.dtype)) {  // by no rule: as large as it is
    check = buffers.check(buffers.outputs(), options_of_check);
  }
  for (const TensorCheck& tensor : check.tensors) {
    candidate.point.error = std::max(candidate.point.error, tensor.max_error);
  }
  buffers.run(plans, 1);
  const double begin = clock.now_s();
  buffers.run(plans, 3);
  candidate.batch = batch_for((clock.now_s() - begin) / 3);
  measure(buffers, candidate, options, telemetry, idle_w, clock);
  return candidate;
}

}  // namespace dfa::run
