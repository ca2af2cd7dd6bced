#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "attention/registry.h"
#include "base/random.h"
#include "measure/problem_buffers.h"
#include "problem_lines.h"
#include "random_lines.h"
#include "spec/config_text.h"

// What the tests on a real device share. Skipped, with the reason, where there is none.
// DFA_FUZZ_SECONDS and DFA_FUZZ_SEED steer the random problems.
namespace dfa {

inline const Backend& cuda() { return find_backend("cuda"); }

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    const Verdict there = cuda().available();
    if (!there) GTEST_SKIP() << there.reason;
  }
};

class HopperDevice : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && cuda().limits().highest != Target::cuda_sm90) {
      GTEST_SKIP() << "of 9.0 alone";
    }
  }
};

inline PlanOptions on_hopper(const std::string& more) {
  return {.backend = "cuda", .algorithm = Algorithm::flash, .config = "target=cuda_sm90" + more};
}

// Of one run on seeded data, which meets the rule.
inline measure::HostOutputs right_outputs(const std::string& line, const PlanOptions& options) {
  const Problem p = parse_problem(line);
  measure::ProblemBuffers buffers(p, "cuda", 5);
  EXPECT_TRUE(buffers.check(measure::prepare(p, options), {.seed = 5}).ok)
      << line << " " << options.config;
  return buffers.outputs();
}

// Did it run? Poisoned outputs, one run, held against fp64.
inline bool checked(const std::string& line, std::uint64_t seed, const PlanOptions& options) {
  const Problem p = parse_problem(line);
  const Verdict can = cuda().supports(p, options);
  if (!can) {
    std::printf("not run: %s: %s\n", line.c_str(), can.reason.c_str());
    return false;
  }
  measure::ProblemBuffers buffers(p, "cuda", seed);
  const CheckReport report = buffers.check(measure::prepare(p, options), {.seed = seed});
  EXPECT_TRUE(report.ok) << report.summary() << "\nrepro: dfa run --backend cuda --problem \""
                         << line << "\" --check --seed " << seed
                         << (options.algorithm == Algorithm::standard ? " --algorithm standard"
                                                                      : "")
                         << (options.config.empty() ? "" : " --config \"" + options.config + "\"");
  return true;
}

// By one of these configurations, which the dice draw. Counts it; false where there is none.
template <typename Config>
bool checked_by_one_of(const std::vector<Config>& configs, Dice& dice, const std::string& line,
                       std::uint64_t seed, int& runs) {
  if (configs.empty()) return false;
  ++runs;
  const Config& config = configs[static_cast<std::size_t>(dice.below(std::ssize(configs)))];
  return dfa::checked(line, seed, {.backend = "cuda", .config = to_text(config)});
}

inline int lines_of(const char* file) { return static_cast<int>(problem_lines(file).size()); }

// How many problems of these files ran.
inline int ran_of(std::initializer_list<const char*> files, const PlanOptions& options) {
  int ran = 0, all = 0;
  for (const char* file : files) {
    for (const std::string& line : problem_lines(file)) {
      ran += checked(line, static_cast<std::uint64_t>(++all), options);
    }
  }
  std::printf("%d of %d problems ran\n", ran, all);
  return ran;
}

inline bool checked_standard(const std::string& line, std::uint64_t seed) {
  return checked(line, seed, {.backend = "cuda", .algorithm = Algorithm::standard});
}

// Few head dims, so that kernels are compiled once; many lengths.
inline std::string random_line(std::uint64_t seed, std::initializer_list<const char*> types) {
  const Random random(seed);
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t count) {
    return static_cast<long long>(random.below(draw++, count));
  };
  static constexpr int kDims[] = {64, 64, 128, 40, 96, 256};
  const long long hk = 1 + below(3), d = kDims[below(6)];
  std::string line =
      (below(3) == 0 ? "fwd " : "fwdbwd ") + std::string(types.begin()[below(types.size())]);
  if (below(2)) line += " causal";
  line += " b" + std::to_string(1 + below(2)) + " hq" + std::to_string(hk * (1 + below(4))) +
          " hk" + std::to_string(hk) + " sq" + std::to_string(1 + below(400)) + " sk" +
          std::to_string(1 + below(400)) + " d" + std::to_string(d);
  if (below(4) == 0) {
    line += " window(" + std::to_string(below(150)) + "," + std::to_string(below(150)) + ")";
  }
  if (below(3) == 0) line += " layout(bshd)";
  if (below(6) == 0)
    line += " scale(" + std::to_string(1 + below(100)) + "e-2)";
  else if (below(12) == 0)
    line += " scale(" + std::to_string(2 + below(20)) + ")";
  return line;
}

inline constexpr int kLeastRandom = 20;

// Calls `check` with one random line after the other, for a while; how many of them it ran.
inline int fuzz(std::initializer_list<const char*> types,
                const std::function<bool(const std::string&, std::uint64_t)>& check) {
  const char* seconds = std::getenv("DFA_FUZZ_SECONDS");
  const char* first = std::getenv("DFA_FUZZ_SEED");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(seconds == nullptr ? 20 : std::atof(seconds));
  std::uint64_t seed = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  int ran = 0;
  // The first ones however slow the machine: time is what a busy one has too little of.
  for (; ran <= kLeastRandom || std::chrono::steady_clock::now() < end; ++seed)
    ran += check(random_line(seed, types), seed);
  std::printf("%d random problems ran\n", ran);
  return ran;
}

// Of each output that differs, in how many bytes, and the first and the last of them; empty: of
// none.
inline std::string other_bits(const measure::HostOutputs& one, const measure::HostOutputs& other) {
  std::string text;
  const auto compare = [&](const char* name, const AlignedBuffer& a, const AlignedBuffer& b) {
    if (a.size() != b.size()) text += std::string(name) + " has another size; ";
    std::size_t count = 0, first = 0, last = 0;
    const auto* x = static_cast<const unsigned char*>(a.data());
    const auto* y = static_cast<const unsigned char*>(b.data());
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (x[i] == y[i]) continue;
      if (count++ == 0) first = i;
      last = i;
    }
    if (count == 0) return;
    text += std::string(name) + ": " + std::to_string(count) + " of " + std::to_string(a.size()) +
            " bytes, from " + std::to_string(first) + " to " + std::to_string(last) + "; ";
  };
  compare("o", one.o, other.o);
  compare("lse", one.lse, other.lse);
  compare("dq", one.dq, other.dq);
  compare("dk", one.dk, other.dk);
  compare("dv", one.dv, other.dv);
  return text;
}

inline bool same_bits(const measure::HostOutputs& one, const measure::HostOutputs& other) {
  return other_bits(one, other).empty();
}

// Does every one of `runs` runs leave the bits of the first?
inline void expect_same_bits(const std::string& line, const PlanOptions& options, int runs) {
  const Problem p = parse_problem(line);
  measure::ProblemBuffers buffers(p, "cuda", 7);
  const measure::PassPlans plans = measure::prepare(p, options);
  buffers.run(plans);
  const measure::HostOutputs once = buffers.outputs();
  for (int run = 0; run < runs; ++run) {
    buffers.run(plans);
    if (run % 50 != 49) continue;
    const std::string other = other_bits(once, buffers.outputs());
    ASSERT_EQ(other, "") << line << ", " << (plans.backward ? plans.backward->backward_config : "")
                         << ", run " << run;
  }
}

// Does a grid of any size deal out the same work tiles? By every `step`-th budget of
// multiprocessors.
inline void expect_same_bits_at_budgets(const std::string& line, const PlanOptions& options,
                                        int step) {
  const Problem p = parse_problem(line);
  const measure::PassPlans plans = measure::prepare(p, options);
  ASSERT_GT(plans.sms(), 0) << line << " takes no budget";
  measure::ProblemBuffers buffers(p, "cuda", 5);
  buffers.run(plans);
  const measure::HostOutputs all = buffers.outputs();
  for (int budget = 1; budget <= plans.sms(); budget += step) {
    buffers.limit_sms(budget);
    // The check fills outputs with NaN before it runs: what is not written shows.
    ASSERT_TRUE(buffers.check(plans, {.max_flops = 1e6, .seed = 5}).ok)
        << line << options.config << ", budget " << budget;
    ASSERT_TRUE(same_bits(all, buffers.outputs()))
        << line << options.config << ", budget " << budget;
  }
}

}  // namespace dfa
