// The CUDA backend on a real device: what cannot be known without one. Skipped, with the reason,
// where there is none. DFA_FUZZ_SECONDS and DFA_FUZZ_SEED steer the random problems.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "attention/registry.h"
#include "base/random.h"
#include "bench/workload.h"
#include "problem_lines.h"

namespace dfa {
namespace {

const Backend& cuda() { return find_backend("cuda"); }

class Device : public testing::Test {
 protected:
  void SetUp() override {
    const Verdict there = cuda().available();
    if (!there) GTEST_SKIP() << there.reason;
  }
};

PlanOptions on_device(const std::string& config = "") {
  return {.backend = "cuda", .algorithm = Algorithm::flash, .config = config};
}

// Did it run? Poisoned outputs, one run, held against fp64.
bool checked(const std::string& line, std::uint64_t seed, const std::string& config = "") {
  const Problem p = parse_problem(line);
  const Verdict can = cuda().supports(p, on_device(config));
  if (!can) {
    std::printf("not run: %s: %s\n", line.c_str(), can.reason.c_str());
    return false;
  }
  bench::Workload workload(p, "cuda", seed);
  const CheckReport report = workload.check(bench::prepare(p, on_device(config)), {.seed = seed});
  EXPECT_TRUE(report.ok) << report.summary() << "\nrepro: dfa run --backend cuda --problem \""
                         << line << "\" --check --seed " << seed
                         << (config.empty() ? "" : " --config \"" + config + "\"");
  return true;
}

using Correctness = Device;

TEST_F(Correctness, EveryProblemOfTheFilesMeetsTheRule) {
  int ran = 0, all = 0;
  for (const char* file : {"regressions.txt", "test_quick.txt", "gpu.txt"}) {
    for (const std::string& line : problem_lines(file)) {
      ++all;
      ran += checked(line, static_cast<std::uint64_t>(all));
    }
  }
  std::printf("%d of %d problems ran\n", ran, all);
  EXPECT_GE(ran, 50);
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(Correctness, SmallProblemsMeetTheRule) {
  for (const std::string& line : problem_lines("sanitize.txt"))
    EXPECT_TRUE(checked(line, 3)) << line;
}

TEST_F(Correctness, RandomProblemsMeetTheRule) {
  const char* seconds = std::getenv("DFA_FUZZ_SECONDS");
  const char* first = std::getenv("DFA_FUZZ_SEED");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(seconds == nullptr ? 20 : std::atof(seconds));
  std::uint64_t seed = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  int ran = 0;
  for (; std::chrono::steady_clock::now() < end; ++seed) {
    const Random random(seed);
    std::uint64_t draw = 0;
    const auto below = [&](std::uint64_t count) {
      return static_cast<long long>(random.below(draw++, count));
    };
    // Few head dims, so that kernels are compiled once; many lengths.
    static constexpr int kDims[] = {64, 64, 128, 40, 96, 256};
    const long long hk = 1 + below(3), d = kDims[below(6)];
    static constexpr const char* kTypes[] = {"bf16", "fp16", "fp32"};
    std::string line = (below(3) == 0 ? "fwd " : "fwdbwd ") + std::string(kTypes[below(3)]);
    if (below(2)) line += " causal";
    line += " b" + std::to_string(1 + below(2)) + " hq" + std::to_string(hk * (1 + below(4))) +
            " hk" + std::to_string(hk) + " sq" + std::to_string(1 + below(400)) + " sk" +
            std::to_string(1 + below(400)) + " d" + std::to_string(d);
    if (below(4) == 0) {
      line += " window(" + std::to_string(below(150)) + "," + std::to_string(below(150)) + ")";
    }
    if (below(3) == 0) line += " layout(bshd)";
    if (below(6) == 0) line += " scale(" + std::to_string(1 + below(100)) + "e-2)";
    ran += checked(line, seed);
  }
  std::printf("%d random problems ran\n", ran);
  EXPECT_GT(ran, 20);
}

TEST_F(Correctness, ThousandRunsGiveTheSameBits) {
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64", "fwdbwd fp16 b1 h4 sq333 sk777 d128"}) {
    const Problem p = parse_problem(line);
    bench::Workload workload(p, "cuda", 7);
    const bench::Prepared plans = bench::prepare(p, on_device());
    workload.run(plans);
    const bench::HostOutputs once = workload.outputs();
    for (int run = 0; run < 1000; ++run) {
      workload.run(plans);
      if (run % 50 != 49) continue;
      const bench::HostOutputs again = workload.outputs();
      const auto same = [](const AlignedBuffer& a, const AlignedBuffer& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
      };
      ASSERT_TRUE(same(once.o, again.o) && same(once.lse, again.lse) && same(once.dq, again.dq) &&
                  same(once.dk, again.dk) && same(once.dv, again.dv))
          << line << ", run " << run;
    }
  }
}

using Faults = Device;

TEST_F(Faults, WhatDoesNotFitIsRefusedAndTheProcessGoesOn) {
  EXPECT_THROW(cuda().allocate(std::size_t{1} << 46), OutOfMemory);
  EXPECT_TRUE(checked("fwd bf16 h1 s64 d64", 1));
}

TEST_F(Faults, HostPointersAreRefusedAndTheProcessGoesOn) {
  const Problem p = parse_problem("fwd bf16 h1 s64 d64");
  AlignedBuffer host(64 * 64 * 2);
  EXPECT_THROW(
      dfa::forward(dfa::plan(p, on_device()),
                   {.q = host.data(), .k = host.data(), .v = host.data(), .o = host.data()}),
      InvalidArgument);
  EXPECT_TRUE(checked("fwd bf16 h1 s64 d64", 1));
}

TEST_F(Faults, AnIllegalTileIsRefusedWithTheReason) {
  EXPECT_THROW(dfa::plan(parse_problem("fwd bf16 h1 s64 d64"), on_device("block_q=7")),
               InvalidArgument);
}

TEST_F(Device, TheCopyRateIsMeasured) {
  const Ceilings ceilings = cuda().measure_ceilings(0, 0.05);
  std::printf("copy %.0f GB/s, read plus write\n", ceilings.copy_bytes * 1e-9);
  EXPECT_GT(ceilings.copy_bytes, 1e11);
}

}  // namespace
}  // namespace dfa
