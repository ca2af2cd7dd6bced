#include "bench/suite_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/result_writer.h"
#include "dfa/error.h"
#include "measure/problem_buffers.h"
#include "temp_dir.h"

namespace dfa::bench {
namespace {

SuiteOptions short_run() {
  SuiteOptions options;
  options.backend = "cpu";
  options.threads = 1;
  options.seconds = 0.05;
  return options;
}

std::vector<ProblemGroup> group(const std::string& line, std::vector<std::string> algorithms) {
  return parse_problem_list(line, algorithms);
}

TEST(SuiteRun, ThreeAlgorithmsAreTimedCheckedAndWeighedOnTheSameInputs) {
  std::vector<double> fractions;
  const SuiteRun run =
      run_suite(group("fwd fp32 b1 h2 s96 d32", {"standard", "flash", "dynamic"}), short_run(),
                [&](const Progress& progress) { fractions.push_back(progress.fraction); });
  ASSERT_EQ(run.result.cases.size(), 3u);
  for (const CaseResult& c : run.result.cases) {
    EXPECT_EQ(c.status, CaseStatus::ok) << c.reason.value_or("");
    EXPECT_EQ(c.suite, "custom");
    EXPECT_EQ(c.backend, "cpu");
    EXPECT_EQ(c.precision, "fp32");
    ASSERT_TRUE(c.time_ms);
    EXPECT_GE(c.time_ms->n, 3);
    EXPECT_LE(c.time_ms->min, c.time_ms->median);
    EXPECT_GT(c.tflops.value(), 0);
    ASSERT_TRUE(c.check);
    EXPECT_TRUE(c.check->ok);
    EXPECT_EQ(c.memory_bytes.value(),
              c.workspace_bytes.value() + 4 * (4 * 2 * 96 * 32) + 4 * 2 * 96);
    EXPECT_EQ(c.energy_j.has_value(), c.not_measured.count("energy_j") == 0);
    EXPECT_TRUE(c.reason);  // no GPU clock on a CPU, at the least
  }
  EXPECT_EQ(run.result.cases[2].origin, "measured");
  ASSERT_TRUE(run.result.cases[2].search);
  EXPECT_GE(run.result.cases[2].search->tried, 1);
  EXPECT_FALSE(run.result.cases[1].search);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(run.samples[0].size(), static_cast<std::size_t>(run.result.cases[0].time_ms->n));
}

TEST(SuiteRun, TheBackwardAndBothPassesRun) {
  auto groups = group("bwd bf16 causal b1 h2 s64 d32\nfwdbwd fp32 b1 hq4 hk2 s40 d16",
                      {"standard", "flash", "dynamic"});
  const SuiteRun run = run_suite(groups, short_run());
  ASSERT_EQ(run.result.cases.size(), 6u);
  for (const CaseResult& c : run.result.cases) {
    EXPECT_EQ(c.status, CaseStatus::ok)
        << c.problem << " " << c.algorithm << ": " << c.reason.value_or("");
  }
  for (const CaseResult& c : run.result.cases) {
    const auto tensors = static_cast<std::int64_t>(measure::tensor_bytes(parse_problem(c.problem)));
    const std::int64_t kept = c.memory_bytes.value() - tensors - c.workspace_bytes.value();
    const bool stored = c.config.find("Probabilities::stored") != std::string::npos;
    EXPECT_EQ(kept > 0, stored) << c.problem << " " << c.config;  // what dynamic takes is measured
    EXPECT_GE(kept, 0) << c.problem;
  }
  EXPECT_EQ(run.result.cases[1].config, "");
  EXPECT_NE(run.result.cases[1].backward_config, "");
  EXPECT_NE(run.result.cases[4].config, "");
}

TEST(SuiteRun, StandardAttentionBeyondTheMemoryIsRecordedWithoutBeingRun) {
  // S and P of 2^19 queries and keys are terabytes; the tensors are small.
  const SuiteRun run = run_suite(group("fwd fp32 b1 h1 s524288 d8", {"standard"}), short_run());
  const CaseResult& c = run.result.cases.at(0);
  EXPECT_EQ(c.status, CaseStatus::out_of_memory);
  EXPECT_NE(c.reason.value().find("not run"), std::string::npos);
  EXPECT_FALSE(c.time_ms);
  EXPECT_FALSE(c.check);
  EXPECT_GT(c.memory_bytes.value(), std::int64_t{1} << 40);
}

TEST(SuiteRun, TheMeasuredPeakHoldsTheWorkspaceThatStandardAttentionTouches) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer's shadow memory counts as resident";
#endif
  const SuiteRun run = run_suite(group("fwd fp32 b1 h4 s1024 d16", {"standard"}), short_run());
  const CaseResult& c = run.result.cases.at(0);
  ASSERT_EQ(c.status, CaseStatus::ok) << c.reason.value_or("");
  if (!c.memory_peak_bytes) GTEST_SKIP() << c.not_measured.at("memory_peak_bytes");
  const auto planned = static_cast<double>(c.memory_bytes.value());
  EXPECT_GT(c.workspace_bytes.value(), 10 << 20);
  EXPECT_NEAR(static_cast<double>(c.memory_peak_bytes.value()), planned, 0.15 * planned);
}

TEST(SuiteRun, TensorsBeyondTheMemoryEndEveryCaseOfTheProblemAndTheRunGoesOn) {
  const SuiteRun run = run_suite(
      group("fwd fp32 b4096 h64 s65536 d128\nfwd fp32 b1 h1 s16 d8", {"standard", "flash"}),
      short_run());
  EXPECT_EQ(run.result.cases.at(0).status, CaseStatus::out_of_memory);
  EXPECT_EQ(run.result.cases.at(1).status, CaseStatus::out_of_memory);
  EXPECT_EQ(run.result.cases.at(2).status, CaseStatus::ok);
  EXPECT_EQ(run.result.cases.at(3).status, CaseStatus::ok);
}

TEST(SuiteRun, WhatTheBackendCannotDoIsUnsupportedWithItsReason) {
  const SuiteRun run = run_suite(group("fwd tf32 b1 h1 s16 d8", {"flash"}), short_run());
  EXPECT_EQ(run.result.cases.at(0).status, CaseStatus::unsupported);
  EXPECT_NE(run.result.cases.at(0).reason.value().find("tf32"), std::string::npos);
}

TEST(SuiteRun, FlashTakesTheConfigurationThatIsAskedForAndStandardNone) {
  SuiteOptions options = short_run();
  options.config = "block_q=16,block_k=16";
  const SuiteRun run = run_suite(group("fwd fp32 b1 h1 s64 d16", {"standard", "flash"}), options);
  EXPECT_EQ(run.result.cases.at(0).config.find("block_q"), std::string::npos);
  EXPECT_NE(run.result.cases.at(1).config.find("block_q=16,.block_k=16"), std::string::npos);
}

TEST(SuiteRun, StoredProbabilitiesAreAnAlgorithmOfAForwardWithItsBackward) {
  const SuiteRun run =
      run_suite(group("fwdbwd fp32 b1 h2 s64 d32\nfwd fp32 b1 h1 s16 d8", {"stored", "standard"}),
                short_run());
  const CaseResult& stored = run.result.cases.at(0);
  EXPECT_EQ(stored.status, CaseStatus::ok) << stored.reason.value_or("");
  EXPECT_EQ(stored.config, "StandardConfig{.probabilities=Probabilities::stored}");
  EXPECT_TRUE(stored.check->ok);
  const CaseResult& recomputed = run.result.cases.at(1);
  EXPECT_EQ(*stored.memory_bytes - *stored.workspace_bytes,
            4 * 2 * 64 * 64 + *recomputed.memory_bytes - *recomputed.workspace_bytes);
  EXPECT_EQ(run.result.cases.at(2).status, CaseStatus::failed);
  EXPECT_NE(run.result.cases.at(2).reason.value().find("fwdbwd"), std::string::npos);
}

TEST(SuiteRun, EnergyMayBeLeftOut) {
  SuiteOptions options = short_run();
  options.energy = false;
  const SuiteRun run = run_suite(group("fwd fp32 b1 h1 s16 d8", {"flash"}), options);
  EXPECT_FALSE(run.result.cases[0].energy_j);
  EXPECT_EQ(run.result.cases[0].not_measured.at("gflop_per_j"), "energy was not asked for");
}

TEST(SuiteRun, ABackendWithoutGraphsIsTimedEagerlyAndSaysSo) {
  auto groups = group("fwd fp32 b1 h1 s16 d8", {"flash"});
  groups[0].launches = {Launch::eager, Launch::graph};
  groups[0].calls = 4;
  const SuiteRun run = run_suite(groups, short_run());
  ASSERT_EQ(run.result.cases.size(), 2u);
  EXPECT_EQ(run.result.cases[0].status, CaseStatus::ok);
  EXPECT_EQ(run.result.cases[0].launch, "eager");
  EXPECT_EQ(run.result.cases[0].calls_per_run, 4);
  EXPECT_EQ(run.result.cases[1].status, CaseStatus::unsupported);
  EXPECT_EQ(run.result.cases[1].launch, "graph");
  EXPECT_NE(run.result.cases[1].reason.value().find("no graphs"), std::string::npos);
}

TEST(SuiteRun, AnInterruptKeepsWhatWasMeasured) {
  SuiteOptions options = short_run();
  int asked = 0;
  options.interrupted = [&] { return ++asked > 1; };
  const SuiteRun run =
      run_suite(group("fwd fp32 b1 h1 s16 d8\nfwd fp32 b1 h1 s32 d8", {"flash"}), options);
  EXPECT_EQ(run.result.cases.size(), 1u);
  EXPECT_EQ(run.samples.size(), 1u);
}

TEST(SuiteRun, UnknownAlgorithmsAndBackendsAreRefused) {
  EXPECT_THROW(run_suite(group("fwd fp32 b1 h1 s8 d8", {"fast"}), short_run()), InvalidArgument);
  SuiteOptions options = short_run();
  options.backend = "tpu";
  EXPECT_THROW(run_suite(group("fwd fp32 b1 h1 s8 d8", {"flash"}), options), InvalidArgument);
}

// Its file is what the Python validator of the schema reads.
TEST(SuiteRun, ItsResultFileIsReadBackAsItIs) {
  dfa::testing::TempDir tree;
  SuiteRun run = run_suite(
      group("fwd fp32 b1 h1 s32 d16\nfwd tf32 b1 h1 s16 d8", {"standard", "flash", "dynamic"}),
      short_run());
  run.result.created = "2026-01-31T12:00:00Z";
  const auto path = tree.path() / "r.json";
  write_result(path, run.result, run.samples);
  EXPECT_EQ(read_result(path), run.result);
  EXPECT_EQ(read_samples(path, run.result.cases[0]).size(), run.samples[0].size());
}

TEST(ProblemBuffers, CountsTheBytesOfItsTensors) {
  const Problem p = parse_problem("fwdbwd bf16 b2 hq4 hk2 sq8 sk16 d32");
  const std::size_t q = 2 * (2 * 4 * 8 * 32), kv = 2 * 2 * (2 * 2 * 16 * 32), lse = 4 * 2 * 4 * 8;
  EXPECT_EQ(measure::tensor_bytes(measure::with_pass(p, Pass::forward)), 2 * q + kv + lse);
  EXPECT_EQ(measure::tensor_bytes(p), 4 * q + 2 * kv + lse);
}

}  // namespace
}  // namespace dfa::bench
