// cuDNN as a peer where it is not there, or not for the problem; with it: tests/device.
#include "bench/cudnn_peer.h"

#include <gtest/gtest.h>

#include "bench/cudnn_graph.h"
#include "bench/suite_run.h"
#include "dfa/error.h"

namespace dfa::bench {
namespace {

std::string reason_of(const std::string& line, const CudnnLibrary& library) {
  try {
    const CudnnForward forward(library, nullptr, parse_problem(line));
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

TEST(CudnnPeer, ALibraryThatIsNotThereOrIsAnotherIsTold) {
  const CudnnLibrary absent({"/nowhere/libcudnn.so.9"});
  EXPECT_FALSE(absent.status);
  EXPECT_NE(absent.status.reason.find("/nowhere/libcudnn.so.9"), std::string::npos)
      << absent.status.reason;
  EXPECT_NE(absent.status.reason.find("DFA_CUDNN"), std::string::npos);
  const CudnnLibrary other({"libm.so.6"});
  EXPECT_EQ(other.status.reason, "'libm.so.6' lacks cudnnGetVersion");
}

TEST(CudnnPeer, WhatTheGraphDoesNotSayIsRefusedBeforeTheLibraryIsAsked) {
  const CudnnLibrary absent({"/nowhere/libcudnn.so.9"});
  EXPECT_NE(reason_of("fwd fp32 h1 s64 d64", absent).find("not fp32"), std::string::npos);
  EXPECT_NE(reason_of("fwdbwd bf16 h1 s64 d64", absent).find("no backward"), std::string::npos);
  for (const char* line : {"fwd bf16 h1 s64 d64 window(3,3)", "fwd bf16 causal h1 sq8 sk64 d64"}) {
    EXPECT_NE(reason_of(line, absent).find("causal with sq = sk"), std::string::npos) << line;
  }
}

TEST(CudnnPeer, OnAProcessorItIsAStatusAndOursGoOn) {
  SuiteOptions options{.backend = "cpu", .threads = 1, .seconds = 0.05};
  options.peers = {CudnnPeer::kAlgorithm};
  const auto cases =
      run_suite(parse_problem_list("fwd fp32 b1 h2 s9 d8", {"flash"}), options).result.cases;
  ASSERT_EQ(cases.size(), 2u);
  for (const CaseResult& c : cases) {
    if (c.algorithm == "flash") {
      EXPECT_EQ(c.status, CaseStatus::ok);
    } else {
      EXPECT_EQ(c.algorithm, "cudnn");
      EXPECT_EQ(c.status, CaseStatus::unsupported);
      EXPECT_EQ(c.reason, "cudnn: runs on a GPU, not on backend cpu");
    }
  }
}

}  // namespace
}  // namespace dfa::bench
