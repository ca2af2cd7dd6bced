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

TEST(PtxasLog, NothingSaidIsNothingRead) {
  const PtxasReport report = read_ptxas_log("");
  EXPECT_EQ(report.registers, 0);
  EXPECT_EQ(report.spill_bytes, 0);
  EXPECT_EQ(read_ptxas_log("used registers, bytes smem\n\n").registers, 0);
}

}  // namespace
}  // namespace dfa::cuda
