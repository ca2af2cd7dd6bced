#include "bench/selftest.h"

#include <algorithm>
#include <optional>

#include "attention/registry.h"
#include "base/clock.h"
#include "base/enum_table.h"
#include "dfa/attention.h"
#include "measure/problem_buffers.h"
#include "spec/config_names.h"
#include "spec/target.h"

namespace dfa::bench {
namespace {

// Every element type, mask, pass and layout once, at edges of tiles; each is checked in
// milliseconds.
constexpr const char* kProblems[] = {
    "fwdbwd fp32 b1 h2 sq65 sk129 d64",
    "fwdbwd fp32 causal b2 hq4 hk2 s100 d128",
    "fwdbwd fp16 causal b1 hq4 hk1 sq63 sk200 d64",
    "fwdbwd bf16 b1 h2 s129 d128",
    "fwdbwd bf16 causal b2 hq6 hk2 s257 d64 layout(bshd)",
    "fwdbwd bf16 window(50,0) b1 h2 s300 d128",
    "fwdbwd bf16 causal b1 h2 s200 d256",
    "fwd bf16 b4 hq8 hk2 sq1 sk500 d128",
    "fwdbwd bf16 causal hq4 hk2 lens(70,1,129) d64",
};

std::string config_for(Target target) { return std::string("target=") + name_of(target); }

void check(SelftestCase& one, const Problem& problem, const PlanOptions& options) {
  std::optional<measure::PassPlans> plans;
  try {
    plans = measure::prepare(problem, options);
  } catch (const Error& error) {  // no kernel of this target
    one.text = error.what();
    return;
  }
  try {
    measure::ProblemBuffers buffers(problem, options.backend, 1);
    const CheckReport report = buffers.check(*plans, {});
    const TensorCheck& worst = report.worst();
    one.outcome = report.ok ? SelftestCase::Outcome::ok : SelftestCase::Outcome::wrong;
    one.share = worst.bound > 0 ? worst.max_error / worst.bound : 0;
    if (!report.ok) one.text = worst.name + ": " + worst.detail;
  } catch (const Error& error) {
    one.outcome = SelftestCase::Outcome::wrong;
    one.text = error.what();
  }
}

constexpr auto kOutcomes =
    enum_table<SelftestCase::Outcome>({{SelftestCase::Outcome::ok, "ok"},
                                       {SelftestCase::Outcome::wrong, "wrong"},
                                       {SelftestCase::Outcome::refused, "refused"}});

}  // namespace

const char* name_of(SelftestCase::Outcome outcome) { return kOutcomes.name(outcome); }

SelftestCount selftest(const std::function<void(const SelftestCase&)>& each) {
  SelftestCount count;
  const auto tell = [&](const SelftestCase& one) {
    switch (one.outcome) {
      case SelftestCase::Outcome::ok: ++count.ok; break;
      case SelftestCase::Outcome::wrong: ++count.wrong; break;
      case SelftestCase::Outcome::refused: ++count.refused; break;
    }
    each(one);
  };
  const auto run_all = [&](const char* backend, Target target) {
    if (const Verdict there = find_backend(backend).available(); !there) {
      tell({.target = name_of(target), .text = there.reason});
      return;
    }
    for (const char* line : kProblems) {
      SelftestCase one{.target = name_of(target), .problem = line};
      const double begin_s = monotonic_s();
      check(one, parse_problem(line),
            {.backend = backend, .algorithm = Algorithm::flash, .config = config_for(target)});
      one.seconds = monotonic_s() - begin_s;
      tell(one);
    }
  };
  for (const Target target : kTargets) run_all("cpu", target);
  for (const Target target : kGpuTargets) run_all("cuda", target);
  return count;
}

}  // namespace dfa::bench
