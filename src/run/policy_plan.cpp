#include "run/policy_plan.h"

#include <fmt/format.h>

#include "power/choose.h"
#include "run/shipped.h"
#include "run/tune.h"
#include "spec/lengths.h"

namespace dfa::run {
namespace {

// Time and joules are of the sizes; rows are measured on dense tensors.
Problem class_of(Problem problem) {
  problem.scale = 0;
  problem.layout = Layout::bhsd;
  problem.q_strides = problem.k_strides = problem.v_strides = problem.o_strides = Strides{};
  return problem;
}

KnownPoints points_of(const Problem& problem, const std::string& profile,
                      const std::string& backend, const power::Policy& policy) {
  KnownPoints known = points_from(profile, problem, {.backend = backend});
  if (known.candidates.empty()) {
    throw Unsupported(fmt::format("policy {}: {}", to_text(policy), known.told));
  }
  std::erase_if(known.candidates, [](const Candidate& one) { return !!one.point.clock_hz; });
  if (known.candidates.empty()) {
    throw Unsupported(fmt::format(
        "policy {}: the profile has rows of '{}' at locked clocks alone, which no call turns",
        to_text(policy), to_line(problem)));
  }
  return known;
}

}  // namespace

Plan policy_plan(const Problem& problem, const std::string& profile, const std::string& backend,
                 const power::Policy& policy) {
  require_plain(problem, "policies");
  if (policy.is_cap() || policy.turns_card()) {
    throw InvalidArgument(fmt::format(
        "policy {} holds over time, not for one call; accepted here: max_performance, min_energy, "
        "edp, latency:2ms",
        to_text(policy)));
  }
  const std::string line = to_line(class_of(problem));
  power::Setup setup;
  const KnownPoints known = points_of(class_of(problem), profile, backend, policy);
  for (const Candidate& candidate : known.candidates) setup.points.push_back(candidate.point);
  if (const Verdict ok = check(setup, policy); !ok) {
    throw Unsupported(
        policy.needs_joules()
            ? fmt::format("policy {}: no row of '{}' has measured joules", to_text(policy), line)
            : ok.reason);
  }
  const power::Choice choice = choose_point(setup, {}, policy);
  if (!choice.reachable) {
    throw Unsupported(fmt::format("policy {}: no configuration of '{}' takes less than {:.3g} ms",
                                  to_text(policy), line, 1e3 * *choice.nearest));
  }
  Plan chosen = plan(problem, {.backend = backend, .config = setup.points[choice.point].label});
  chosen.why += fmt::format("; by policy {} from {} measured configuration{} ({})", to_text(policy),
                            setup.points.size(), setup.points.size() == 1 ? "" : "s", known.told);
  return chosen;
}

}  // namespace dfa::run
