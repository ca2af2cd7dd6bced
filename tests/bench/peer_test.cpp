// PyTorch as a peer, with a stand-in for the program that runs it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>

#include "bench/child_process.h"
#include "bench/suite_run.h"
#include "bench/torch_peer.h"
#include "dfa/error.h"
#include "temp_dir.h"

namespace dfa::bench {
namespace {

class PeerTest : public ::testing::Test {
 protected:
  PeerTest() { ::setenv("DFA_TORCH_PEER", DFA_SOURCE_DIR "/tests/bench/fake_torch.py", 1); }
  ~PeerTest() override {
    ::unsetenv("DFA_TORCH_PEER");
    ::unsetenv("FAKE_TORCH");
  }

  // By algorithm.
  static std::map<std::string, CaseResult> cases_of(const char* mode, const char* line) {
    ::setenv("FAKE_TORCH", mode, 1);
    SuiteOptions options{.backend = "cpu", .threads = 1, .seconds = 0.05};
    options.peers = TorchPeer::algorithms();
    std::map<std::string, CaseResult> cases;
    for (const CaseResult& c : run_suite(parse_problem_list(line, {"flash"}), options).result.cases)
      cases[c.algorithm] = c;
    return cases;
  }
};

constexpr const char* kLine = "fwd fp32 b1 h2 s9 d8";

TEST_F(PeerTest, ItsKindsAreTimedAndCheckedOnOurInputs) {
  const auto cases = cases_of("", kLine);
  ASSERT_EQ(cases.size(), 6u);
  const CaseResult& flash = cases.at("torch-flash");
  EXPECT_EQ(flash.status, CaseStatus::ok) << flash.reason.value_or("");
  EXPECT_EQ(flash.backend, "torch");
  EXPECT_EQ(flash.why, "Fake 1.0, scaled_dot_product_attention");
  EXPECT_DOUBLE_EQ(flash.time_ms.value().median, 1);
  EXPECT_TRUE(flash.check.value().ok);
  EXPECT_EQ(flash.check->tensor, "o");
  EXPECT_EQ(flash.flops, cases.at("flash").flops);
  EXPECT_EQ(cases.at("torch-flash3").why, "Fake 1.0, flash_attn_3");
  EXPECT_EQ(flash.memory_peak_bytes.value(), 4096 + 4 * (4 * 2 * 9 * 8) + 4 * 2 * 9);
  EXPECT_FALSE(flash.memory_bytes);
  EXPECT_EQ(flash.not_measured.count("memory_bytes"), 1u);
}

TEST_F(PeerTest, WhatItCannotDoIsAStatusWithItsWords) {
  const auto cases = cases_of("", kLine);
  EXPECT_EQ(cases.at("torch-cudnn").status, CaseStatus::unsupported);
  EXPECT_EQ(cases.at("torch-cudnn").reason, "torch: No available kernel");
  EXPECT_EQ(cases.at("torch-math").status, CaseStatus::out_of_memory);
  EXPECT_EQ(cases.at("torch-math").reason, "torch: tried to allocate 99 GiB");
  EXPECT_EQ(cases.at("flash").status, CaseStatus::ok);
}

TEST_F(PeerTest, ModesOfTorchCompileAreAWayToLaunchOfPyTorchAlone) {
  ::setenv("FAKE_TORCH", "cannot compile", 1);
  SuiteOptions options{.backend = "cpu", .threads = 1, .seconds = 0.05};
  options.peers = {"torch-flash"};
  auto groups = parse_problem_list(kLine, {"flash"});
  groups[0].launches = {Launch::eager, Launch::compile, Launch::compile_max_autotune};
  std::map<std::string, CaseResult> cases;
  for (const CaseResult& c : run_suite(groups, options).result.cases)
    cases[c.algorithm + " " + c.launch] = c;
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_DOUBLE_EQ(cases.at("torch-flash eager").time_ms.value().median, 1);
  EXPECT_DOUBLE_EQ(cases.at("torch-flash compile").time_ms.value().median, 0.5);
  EXPECT_TRUE(cases.at("torch-flash compile").check.value().ok);
  EXPECT_EQ(cases.at("torch-flash compile-max-autotune").status, CaseStatus::failed);
  EXPECT_EQ(cases.at("torch-flash compile-max-autotune").reason,
            "torch: BackendCompilerFailed: no compiler");
  EXPECT_EQ(cases.at("flash eager").status, CaseStatus::ok);
  options.peers = {"cudnn"};
  try {
    run_suite(groups, options);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "launch 'compile' is of PyTorch's peers; accepted with --peers torch");
  }
}

TEST_F(PeerTest, AWrongResultOfAPeerIsCaught) {
  const CaseResult flash = cases_of("wrong", kLine).at("torch-flash");
  EXPECT_EQ(flash.status, CaseStatus::failed);
  EXPECT_FALSE(flash.check.value().ok);
  EXPECT_NE(flash.reason.value().find("wrong result: o"), std::string::npos);
}

TEST_F(PeerTest, WithoutTorchOrWhenItEndsOurCasesGoOn) {
  for (const auto& [mode, words] :
       {std::pair("absent", "no PyTorch here"), std::pair("dies", "has ended: a last word"),
        std::pair("nonsense", "no answer to 'time'")}) {
    const auto cases = cases_of(mode, "fwd fp32 b1 h2 s9 d8\nfwd fp32 b1 h1 s7 d8");
    EXPECT_EQ(cases.at("flash").status, CaseStatus::ok);
    const CaseResult& peer = cases.at("torch-flash");
    EXPECT_EQ(peer.status, CaseStatus::unsupported) << mode;
    EXPECT_NE(peer.reason.value().find(words), std::string::npos) << *peer.reason;
  }
}

TEST_F(PeerTest, APythonThatIsNotThereIsAReason) {
  ::setenv("DFA_PYTHON", "no-python-here", 1);
  const auto cases = cases_of("", kLine);
  ::unsetenv("DFA_PYTHON");
  EXPECT_EQ(cases.at("torch-flash").status, CaseStatus::unsupported);
  EXPECT_NE(cases.at("torch-flash").reason.value().find("'no-python-here' cannot be started"),
            std::string::npos);
}

TEST(ChildProcess, SilenceEndsAtTheTimeout) {
  const dfa::testing::TempDir tree;
  ChildProcess silent({"sleep", "1000"}, tree.path() / "errors");
  try {
    silent.ask("hello", 0.05);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("'sleep' does not answer"), std::string::npos);
  }
}

TEST(ChildProcess, LinesComeBackInOrder) {
  const dfa::testing::TempDir tree;
  ChildProcess echo({"cat"}, tree.path() / "errors");
  EXPECT_EQ(echo.ask("one", 5), "one");
  const std::string large(100'000, 'x');
  EXPECT_EQ(echo.ask(large, 5), large);
}

}  // namespace
}  // namespace dfa::bench
