#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "dfa/attention.h"
#include "reference/check.h"
#include "spec/target.h"
#include "tensors.h"

namespace dfa {

// One way to run a problem on this machine.
struct Variant {
  std::string name;
  PlanOptions options;
};

// Standard attention, and FlashAttention on every target that this processor has.
inline std::vector<Variant> variants_of(const Problem& problem) {
  std::vector<Variant> variants{{"standard", {.algorithm = Algorithm::standard}}};
  for (const Target target : kTargets) {
    PlanOptions options{.algorithm = Algorithm::flash,
                        .config = std::string("target=") + name_of(target)};
    try {
      plan(problem, options);
    } catch (const InvalidArgument&) {
      continue;  // not on this processor, or not for this element type
    }
    variants.push_back({name_of(target), options});
  }
  return variants;
}

inline Plan run(Tensors& t, const PlanOptions& options) {
  const Plan plan = dfa::plan(t.p, options);
  forward(plan, t.forward_args());
  if (t.p.pass == Pass::forward_backward) backward(plan, t.backward_args());
  return plan;
}

// Empty, or what is wrong and the line that shows it again.
inline std::string fault(Tensors& t, const Variant& variant, std::uint64_t seed,
                         const CheckOptions& options = {}) {
  CheckReport report = check_forward(t.p, t.forward_args(), options);
  std::string text = report.ok ? "" : report.summary();
  if (t.p.pass == Pass::forward_backward) {
    report = check_backward(t.p, t.backward_args(), options);
    if (!report.ok) text += "\n" + report.summary();
  }
  if (text.empty()) return "";
  const bool standard = variant.options.algorithm == Algorithm::standard;
  return text + "\nrepro: dfa run --problem \"" + to_line(t.p) + "\" --check --seed " +
         std::to_string(seed) +
         (standard ? " --algorithm standard" : " --config \"" + variant.options.config + "\"");
}

// The problem lines of a file under problems/, without comments and empty lines.
inline std::vector<std::string> problem_lines(const std::string& file) {
  std::ifstream stream(std::string(DFA_SOURCE_DIR) + "/problems/" + file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.front() != '#') lines.push_back(line);
  }
  return lines;
}

}  // namespace dfa
