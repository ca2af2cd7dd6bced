#include "cuda/ptxas_log.h"

#include <gtest/gtest.h>

namespace dfa::cuda {
namespace {

TEST(PtxasLog, RegistersSharedMemorySpillsAndStackAreRead) {
  const PtxasReport report = read_ptxas_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function '_Z4kernPfi' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z4kernPfi\n"
      "ptxas         .     152 bytes stack frame, 148 bytes spill stores, 144 bytes spill loads\n"
      "ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem\n"
      "ptxas info    : Compile time = 10.315 ms\n");
  EXPECT_EQ(report.registers, 64);
  EXPECT_EQ(report.smem_bytes, 1024);
  EXPECT_EQ(report.spill_bytes, 292);
  EXPECT_EQ(report.stack_bytes, 152);
  EXPECT_EQ(report.warning, "");
}

TEST(PtxasLog, WhatPtxasGaveUpOnIsKeptInItsWords) {
  const std::string ignored =
      "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to "
      "determine register count at entry.";
  EXPECT_EQ(read_ptxas_log("ptxas info    : 0 bytes gmem\n" + ignored + "\n").warning, ignored);
  const std::string serialized =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to non wgmma instructions in the function '_Z4kernPfi'";
  EXPECT_EQ(read_ptxas_log(serialized).warning, serialized);
}

// As releases word it: 12.9 and 13.0 have the same words, 13.5 others and a line's number.
TEST(PtxasLog, ItsCodesAreLookedForNotItsWords) {
  for (const std::string line :
       {"ptxas info    : (C7517) warpgroup.wait is injected in around line 53 by compiler to allow "
        "use of registers defined by GMMA in function '_Z1kPfy'",
        "ptxas info    : (C7517) wgmma.wait_group is injected in around line 53 by compiler to "
        "allow use of registers defined by GMMA in function '_Z1kPfy'",
        "ptxas info    : (C7519) warpgroup.arrive is injected in around line 45 by compiler to "
        "allow use of registers in GMMA in function '_Z1kPfy'",
        "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in the function "
        "'_Z1kPfy' in line 55",
        "ptxas info    : (C7510) in words of a release to come"}) {
    const PtxasReport report = read_ptxas_log("ptxas info    : 0 bytes gmem\n" + line + "\n");
    EXPECT_EQ(report.warning, line);
    EXPECT_EQ(refusal(report, "nvrtc 13.5").rfind("by nvrtc 13.5: " + line, 0), 0u);
  }
  for (const char* line : {"ptxas info    : (C7) x", "ptxas info    : (C75)", "kernel (C75",
                           "C7510", "ptxas info    : (C7100) x", "ptxas info    : (C75102) x"}) {
    EXPECT_EQ(read_ptxas_log(line).warning, "") << line;
  }
}

std::string log_of_spill(int bytes) {
  const std::string text = std::to_string(bytes);
  return "ptxas info    : Function properties for _Z4kernPfi\n"
         "ptxas         .     8 bytes stack frame, " +
         text + " bytes spill stores, " + text +
         " bytes spill loads\n"
         "ptxas info    : Used 168 registers, used 16 barriers, 8 bytes cumulative stack size\n";
}

TEST(PtxasLog, ASmallSpillIsToldAndALargeOneRefused) {
  const PtxasReport none = read_ptxas_log(log_of_spill(0));
  EXPECT_EQ(spill_warning(none, "nvrtc 13.5"), "");
  EXPECT_EQ(refusal(none, "nvrtc 13.5"), "");
  for (const int bytes : {4, kMostSpilled / 2}) {
    const PtxasReport small = read_ptxas_log(log_of_spill(bytes));
    EXPECT_EQ(refusal(small, "nvrtc 13.5"), "");
    const std::string text = spill_warning(small, "nvrtc 13.5");
    EXPECT_EQ(
        text.rfind("by nvrtc 13.5 registers spill, " + std::to_string(2 * bytes) + " bytes", 0), 0u)
        << text;
  }
  const std::string text =
      refusal(read_ptxas_log(log_of_spill(kMostSpilled / 2 + 4)), "nvrtc 13.5");
  EXPECT_EQ(text.rfind("by nvrtc 13.5: registers spill, 72 bytes", 0), 0u) << text;
  for (const char* way : {"up to 64", "DFA_NVRTC", "--config"}) {
    EXPECT_NE(text.find(way), std::string::npos) << text;
  }
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(PtxasLog, TwoCompilationsSayTheSameWithoutTheirTimes) {
  const std::string said = "ptxas info    : Used 64 registers\n";
  EXPECT_EQ(without_times(said + "ptxas info    : Compile time = 10.315 ms\n" + said), said + said);
  EXPECT_EQ(without_times(said + "no end"), said + "no end");
  EXPECT_EQ(without_times(""), "");
}

TEST(PtxasLog, NothingSaidIsNothingRead) {
  const PtxasReport report = read_ptxas_log("");
  EXPECT_EQ(report.registers, 0);
  EXPECT_EQ(report.spill_bytes, 0);
  EXPECT_EQ(read_ptxas_log("used registers, bytes smem\n\n").registers, 0);
}

}  // namespace
}  // namespace dfa::cuda
