#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/cpuid.h"
#include "dfa/attention.h"
#include "plan/validate.h"
#include "problem_lines.h"
#include "reference/check.h"
#include "reference/truths.h"
#include "spec/config_names.h"
#include "spec/limits.h"
#include "tensors.h"

namespace dfa {

// One way to run a problem on this machine.
struct Variant {
  std::string name;
  PlanOptions options;
};

// Under the thread sanitizer, which looks for races, values are read and not judged: other builds
// judge the same ones, by a reference without threads that would be nine tenths of the time here.
// There the same code of every target gives threads their work, so that two targets show it.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kJudged = false;
inline const bool kEveryTarget = std::getenv("DFA_EVERY_TARGET") != nullptr;
#else
inline constexpr bool kJudged = true;
inline constexpr bool kEveryTarget = true;
#endif

// FlashAttention on every target that this processor has, with the tiles of the library's choice
// and with small ones, so that short sequences cross many tiles. Illegal ones are left out by the
// rules, never because planning failed.
inline std::vector<Variant> flash_variants_of(const Problem& problem) {
  const Limits limits{.highest = cpu::highest_target()};
  std::vector<Variant> variants;
  for (const Target target : kTargets) {
    if (!kEveryTarget && target != Target::cpu_portable && target != limits.highest) continue;
    const ForwardConfig small{.target = target,
                              .element = problem.dtype,
                              .head_dim = static_cast<int>(problem.d),
                              .value_dim = static_cast<int>(problem.dv),
                              .block_q = 32,
                              .block_k = 32};
    if (!validate_config(small, problem, limits)) continue;
    for (const char* tiles : {"", ", block_q=32, block_k=32"}) {
      const std::string config = std::string("target=") + name_of(target) + tiles;
      variants.push_back({config, {.algorithm = Algorithm::flash, .config = config}});
    }
  }
  return variants;
}

inline std::vector<Variant> variants_of(const Problem& problem) {
  std::vector<Variant> variants = flash_variants_of(problem);
  variants.push_back({"standard", {.algorithm = Algorithm::standard}});
  return variants;
}

// Runs the problem's passes; a backward alone is given the o and lse of a forward of its own.
inline Plan run(Tensors& t, const PlanOptions& options) {
  const Plan plan = dfa::plan(t.p, options);
  if (t.p.pass == Pass::backward) {
    Problem forward_problem = t.p;
    forward_problem.pass = Pass::forward;
    forward(dfa::plan(forward_problem, options), t.forward_args());
  } else {
    forward(plan, t.forward_args());
  }
  if (t.p.pass != Pass::forward) backward(plan, t.backward_args());
  return plan;
}

// All outputs, so that one that is still written to is seen.
inline void read_outputs(const Tensors& t) {
  unsigned sum = 0;
  for (const auto* bytes : {&t.o, &t.dq, &t.dk, &t.dv}) {
    for (const std::byte byte : *bytes) sum += static_cast<unsigned>(byte);
  }
  for (const auto* floats : {&t.lse, &t.d_sinks, &t.d_bias}) {
    for (const float value : *floats) sum += std::bit_cast<unsigned>(value);
  }
  asm volatile("" ::"r"(sum));  // or nobody would need the sum
}

// Empty, or what is wrong and the line that shows it again.
inline std::string fault(Tensors& t, const Variant& variant, std::uint64_t seed,
                         const CheckOptions& options = {}) {
  if constexpr (!kJudged) {
    read_outputs(t);
    return "";
  }
  CheckReport report = check_forward(t.p, t.forward_args(), options);
  std::string text = report.ok ? "" : report.summary();
  if (t.p.pass != Pass::forward) {
    report = check_backward(t.p, t.backward_args(), options);
    if (!report.ok) text += "\n" + report.summary();
  }
  if (text.empty()) return "";
  const bool standard = variant.options.algorithm == Algorithm::standard;
  return text + "\nrepro: dfa run --problem \"" + to_line(t.p) + "\" --check --seed " +
         std::to_string(seed) +
         (standard ? " --algorithm standard" : " --config \"" + variant.options.config + "\"");
}

// What a call throws of exactly this class; empty if it throws nothing. Always one line.
template <typename Expected, typename Function>
std::string message(Function&& function) {
  try {
    function();
  } catch (const Expected& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  return "";
}

// Rows [begin, end) of one head's k and v become NaN in one of two copies: nobody else's bits
// change, and the rows themselves show it. AMX's forward takes a running maximum for a head that
// is not finite (cpu/amx_forward.h), so that lse differs in its last bits, P or dS then by a
// rounding of bf16, and the output by another.
inline void expect_nan_stays(Tensors& clean, Tensors& poisoned, const Variant& variant,
                             std::int64_t begin, std::int64_t end) {
  const std::int64_t d = clean.p.d;
  for (std::int64_t i = begin * d; i < end * d; ++i) {
    poisoned.set(poisoned.k, i, NAN);
    poisoned.set(poisoned.v, i, NAN);
  }
  run(clean, variant.options);
  run(poisoned, variant.options);
  const float rounding = variant.options.config.rfind("target=cpu_amx", 0) == 0 ? 0x1p-6F : 0.0F;
  for (std::int64_t i = 0; i < clean.p.sq * d; ++i) {
    if (i >= begin * d && i < end * d) continue;
    for (const auto tensor : {&Tensors::o, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
      const float wanted = clean.at(clean.*tensor, i), got = poisoned.at(poisoned.*tensor, i);
      ASSERT_LE(std::abs(wanted - got), rounding * std::max(1.0F, std::abs(wanted)))
          << variant.name << " " << i;
    }
  }
  EXPECT_TRUE(std::isnan(poisoned.at(poisoned.o, begin * d))) << variant.name;
}

}  // namespace dfa
