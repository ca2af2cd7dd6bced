#include "measure/tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/registry.h"
#include "measure/statistics.h"
#include "plan/select.h"
#include "spec/config_text.h"
#include "spec/limits.h"
#include "spec/standard_config.h"

namespace dfa::measure {
namespace {

constexpr double kScreeningShare = 0.7;  // of the budget; the rest is for the finalists
constexpr std::size_t kFinalists = 4;

double timed(const std::function<void(std::size_t)>& run, std::size_t index, const Clock& clock) {
  const double begin = clock.now_s();
  run(index);
  return clock.now_s() - begin;
}

struct Trial {
  std::size_t index;
  double seconds;
};

// The better of two runs of each candidate: the first run also warms caches and tables.
std::vector<Trial> screen(std::size_t count, const std::function<void(std::size_t)>& run,
                          double deadline_s, const Clock& clock) {
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < count && (i == 0 || clock.now_s() < deadline_s); ++i) {
    try {
      const double first = timed(run, i, clock);
      trials.push_back({i, std::min(first, timed(run, i, clock))});
    } catch (const InvalidArgument&) {
      if (i == 0) throw;
    } catch (const Unsupported&) {
      if (i == 0) throw;
    }
  }
  return trials;
}

// The default and the fastest few others.
std::vector<std::size_t> finalists(std::vector<Trial> trials) {
  std::stable_sort(trials.begin() + 1, trials.end(),
                   [](const Trial& a, const Trial& b) { return a.seconds < b.seconds; });
  std::vector<std::size_t> chosen;
  for (const Trial& trial : trials) {
    if (chosen.size() <= kFinalists) chosen.push_back(trial.index);
  }
  return chosen;
}

template <typename Config>
double distance(const Config& a, const Config& b) {
  return std::abs(std::log2(1.0 * a.block_q / b.block_q)) +
         std::abs(std::log2(1.0 * a.block_k / b.block_k));
}

// Of the start's target.
template <typename Config>
std::vector<std::string> nearest_first(std::vector<Config> candidates, const Config& start) {
  std::erase_if(candidates,
                [&](const Config& c) { return c == start || c.target != start.target; });
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Config& a, const Config& b) {
    return distance(a, start) < distance(b, start);
  });
  std::vector<std::string> texts{to_text(start)};
  for (const Config& candidate : candidates) texts.push_back(to_text(candidate));
  return texts;
}

Plan tune_pass(const Problem& problem, PlanOptions options,
               const std::function<void(const Plan&)>& run, const SearchOptions& search,
               const Clock& clock, Search& total) {
  std::vector<Plan> plans{plan(problem, options)};
  for (const std::string& text :
       tile_candidates(plans[0], find_backend(plans[0].backend).limits())) {
    if (text == plans[0].config || text == plans[0].backward_config) continue;
    options.config = text;
    plans.push_back(plan(problem, options));
  }
  const FastestOf best = find_fastest(
      plans.size(), [&](std::size_t i) { run(plans[i]); }, search, clock);
  total.seconds += best.search.seconds;
  total.tried += best.search.tried;
  total.candidates += best.search.candidates;
  Plan chosen = plans[best.index];
  chosen.origin = "measured";
  chosen.why = "the tile that ran fastest of " + std::to_string(best.search.tried) + " tried";
  return chosen;
}

// Takes the plans that keep P where they are faster and fit.
void try_stored(ProblemBuffers& buffers, std::optional<PassPlans> stored,
                const SearchOptions& search, const Clock& clock, Tuned& tuned) {
  if (!stored) return;
  const auto allowed = allowed_bytes(find_backend(stored->any().backend));
  if (allowed && static_cast<std::int64_t>(stored->memory_bytes()) > *allowed) return;
  const PassPlans* const both[] = {&tuned.plans, &*stored};
  const FastestOf best = find_fastest(
      2, [&](std::size_t i) { buffers.run(*both[i]); }, search, clock);
  tuned.search.seconds += best.search.seconds;
  tuned.search.tried += best.search.tried - 1;  // the first is one of those tried before
  tuned.search.candidates += 1;
  if (best.index == 0) return;
  for (Plan* plan : {&*stored->forward, &*stored->backward}) {
    plan->origin = "measured";
    plan->why += "; it ran faster than recomputing them in the fastest tiles";
  }
  tuned.plans = *std::move(stored);
}

}  // namespace

FastestOf find_fastest(std::size_t count, const std::function<void(std::size_t)>& run,
                       const SearchOptions& options, const Clock& clock) {
  const double begin = clock.now_s();
  const std::vector<Trial> trials =
      screen(count, run, begin + kScreeningShare * options.budget_s, clock);
  const std::vector<std::size_t> chosen = finalists(trials);
  std::vector<std::vector<double>> times(chosen.size());
  for (int round = 0; round < options.final_rounds; ++round) {
    if (round > 0 && clock.now_s() - begin > options.budget_s) break;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      times[i].push_back(timed(run, chosen[i], clock));
    }
  }
  FastestOf best{0, {0, static_cast<int>(trials.size()), static_cast<int>(count)}};
  double least = summarize(times[0]).median * (1 - options.least_gain);
  for (std::size_t i = 1; i < chosen.size(); ++i) {
    const double median = summarize(times[i]).median;
    if (median < least) {
      least = median;
      best.index = chosen[i];
    }
  }
  best.search.seconds = clock.now_s() - begin;
  return best;
}

std::vector<std::string> tile_candidates(const Plan& default_plan, const Limits& limits) {
  const Problem& p = default_plan.problem;
  if (default_plan.config.empty() && default_plan.backward_config.empty()) return {};  // no tiles
  if (p.pass == Pass::backward) {
    const BackwardConfig start = parse_config(default_plan.backward_config, BackwardConfig{});
    return nearest_first(backward_candidates(p, limits), start);
  }
  const ForwardConfig start = parse_config(default_plan.config, ForwardConfig{});
  return nearest_first(forward_candidates(p, limits), start);
}

std::optional<PassPlans> stored_plans(const Problem& problem, const PlanOptions& options) {
  if (problem.pass != Pass::forward_backward) return std::nullopt;
  PlanOptions stored = options;
  stored.algorithm = Algorithm::standard;
  stored.config = to_text(StandardConfig{Probabilities::stored});
  try {
    return prepare(problem, stored);
  } catch (const Unsupported&) {  // no products, or more scores than can be counted
    return std::nullopt;
  } catch (const InvalidArgument&) {  // the reference takes no configuration
    return std::nullopt;
  }
}

Tuned tune(ProblemBuffers& buffers, const PlanOptions& options, const SearchOptions& search,
           const Clock& clock) {
  const Problem& problem = buffers.problem();
  SearchOptions share = search;
  if (problem.pass == Pass::forward_backward) share.budget_s /= 3;
  Tuned tuned;
  if (has_forward(problem)) {
    tuned.plans.forward = tune_pass(
        with_pass(problem, Pass::forward), options,
        [&](const Plan& plan) { buffers.forward(plan); }, share, clock, tuned.search);
  }
  if (has_backward(problem)) {
    tuned.plans.backward = tune_pass(
        with_pass(problem, Pass::backward), options,
        [&](const Plan& plan) { buffers.backward(plan); }, share, clock, tuned.search);
  }
  try_stored(buffers, stored_plans(problem, options), share, clock, tuned);
  return tuned;
}

}  // namespace dfa::measure
