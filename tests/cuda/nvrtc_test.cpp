#include "cuda/nvrtc.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "temp_dir.h"

namespace dfa::cuda {
namespace {

// Kernels with the same traits as ours: a configuration as template argument, includes of ours.
constexpr SourceFile kSources[] = {
    {"test/config.h", R"(#pragma once
namespace test { struct Config { int width = 1; int depth = 2; }; })"},
    {"test/good.cuh", R"(#pragma once
#include "test/config.h"
#include "test/config.h"
namespace test {
template <Config config>
__global__ void scale(float* x) {
  __shared__ float tile[64 * config.width];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[63 - threadIdx.x];
}
})"},
    {"test/spills.cuh", R"(
__global__ void __launch_bounds__(1024) spills(float* p) {
  float x[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(x[i]) : "l"(p + i));
#pragma unroll
  for (int i = 95; i >= 0; --i) asm volatile("st.volatile.global.f32 [%1], %0;" :: "f"(x[i]), "l"(p + i));
})"},
    {"test/spills_few.cuh", R"(
__global__ void __launch_bounds__(1024) spills_few(float* p) {
  float x[62];
#pragma unroll
  for (int i = 0; i < 62; ++i) asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(x[i]) : "l"(p + i));
#pragma unroll
  for (int i = 61; i >= 0; --i) asm volatile("st.volatile.global.f32 [%1], %0;" :: "f"(x[i]), "l"(p + i));
})"},
    {"test/ignored.cuh", R"(
__global__ void ignored(float* p) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  p[0] = 1;
})"},
    {"test/broken.cuh", "__global__ void broken(float* p) { p[0] = nonsense; }"},
};

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Verdict there = nvrtc.available(); !there) GTEST_SKIP() << there.reason;
  }

  // What compile() throws.
  template <class Expected>
  std::string message_of(const CompileRequest& request) {
    try {
      nvrtc.compile(request);
    } catch (const Expected& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  const Nvrtc nvrtc{kSources};
  const CompileRequest good{"test/good.cuh", "test::scale<test::Config{.width = 3}>", "sm_90a"};
};

TEST_F(NvrtcTest, AConfigurationAsTextBecomesACubinOfItsKernel) {
  const CompiledKernel kernel = nvrtc.compile(good);
  EXPECT_EQ(kernel.cubin.substr(0, 4), "\177ELF");
  EXPECT_NE(kernel.cubin.find(kernel.lowered_name), std::string::npos);
  EXPECT_EQ(kernel.lowered_name.substr(0, 2), "_Z");
  EXPECT_GT(kernel.registers, 0);
  EXPECT_EQ(kernel.smem_bytes, 64 * 3 * 4);
  EXPECT_EQ(kernel.stack_bytes, 0);
  EXPECT_EQ(nvrtc.version().substr(0, 6), "nvrtc ");
}

TEST_F(NvrtcTest, EveryArchitectureWeClaimIsKnown) {
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"}) {
    CompileRequest request = good;
    request.arch = arch;
    EXPECT_FALSE(nvrtc.compile(request).cubin.empty()) << arch;
  }
}

TEST_F(NvrtcTest, AnUnknownArchitectureIsUnsupportedAndNamesTheKnownOnes) {
  for (const char* arch : {"sm_20", "sm_", "", "90a", "sm_999999999999"}) {
    CompileRequest request = good;
    request.arch = arch;
    const std::string text = message_of<Unsupported>(request);
    EXPECT_NE(text.find(std::string("'") + arch + "'; accepted: sm_"), std::string::npos) << text;
    EXPECT_NE(text.find(", sm_80, "), std::string::npos) << text;
  }
}

TEST_F(NvrtcTest, ASourceThatDoesNotCompileGivesTheFirstErrorAndTheLog) {
  try {
    nvrtc.compile({"test/broken.cuh", "broken", "sm_80"});
    FAIL();
  } catch (const CompileError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("kernel broken for sm_80"), std::string::npos) << text;
    EXPECT_NE(text.find("nonsense"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_NE(error.log().find("nonsense"), std::string::npos);
  }
  EXPECT_NE(message_of<CompileError>({"test/none.cuh", "none", "sm_80"}).find("test/none.cuh"),
            std::string::npos);
  EXPECT_NE(message_of<CompileError>({"test/good.cuh", "test::shrink", "sm_80"}).find("shrink"),
            std::string::npos);
}

TEST_F(NvrtcTest, LargeSpillsAreAnErrorThatNamesKernelAndCompiler) {
  const std::string text = message_of<CompileError>({"test/spills.cuh", "spills", "sm_90a"});
  const std::string begin =
      "kernel spills for sm_90a by " + nvrtc.version() + ": registers spill, ";
  EXPECT_EQ(text.rfind(begin, 0), 0u) << text;
}

TEST_F(NvrtcTest, SmallSpillsAreAWarningOfTheKernel) {
  const CompiledKernel kernel = nvrtc.compile({"test/spills_few.cuh", "spills_few", "sm_90a"});
  EXPECT_EQ(kernel.warning.rfind("by " + nvrtc.version() + " registers spill, ", 0), 0u)
      << kernel.log;
  EXPECT_EQ(nvrtc.compile(good).warning, "");
}

// A user's text ahead of the file, say, for which nobody chose the tile.
TEST_F(NvrtcTest, LargeSpillsBehindAPreambleAreAWarning) {
  const CompiledKernel kernel =
      nvrtc.compile({"test/spills.cuh", "spills", "sm_90a", {}, "constexpr int kOfAText = 1;\n"});
  EXPECT_NE(kernel.warning.find("registers spill"), std::string::npos) << kernel.log;
}

TEST_F(NvrtcTest, WhatPtxasGivesUpOnIsAnError) {
  const std::string text = message_of<CompileError>({"test/ignored.cuh", "ignored", "sm_90a"});
  EXPECT_NE(text.find("C7508"), std::string::npos) << text;
}

TEST_F(NvrtcTest, OptionsReachTheCompiler) {
  CompileRequest request = good;
  request.options = {"--no-such-option"};
  EXPECT_NE(message_of<CompileError>(request).find("no-such-option"), std::string::npos);
}

TEST_F(NvrtcTest, TwoThreadsCompileAtOnce) {
  std::string first, second;
  std::thread other([&] { first = nvrtc.compile(good).cubin; });
  second = nvrtc.compile(good).cubin;
  other.join();
  EXPECT_EQ(first, second);
}

TEST(NvrtcAbsent, IsUnsupportedAndSaysWhereToGetIt) {
  const Nvrtc nvrtc(kSources, {"libdfa_is_not_there.so"});
  EXPECT_FALSE(nvrtc.available());
  EXPECT_EQ(nvrtc.version(), "");
  try {
    nvrtc.compile({"test/good.cuh", "x", "sm_80"});
    FAIL();
  } catch (const Unsupported& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("libdfa_is_not_there.so"), std::string::npos) << text;
    EXPECT_NE(text.find("nvidia-cuda-nvrtc"), std::string::npos) << text;
  }
}

TEST(NvrtcAbsent, AnotherLibraryIsToldWhatItLacks) {
  const Nvrtc nvrtc(kSources, {"libc.so.6"});
  EXPECT_NE(nvrtc.available().reason.find("'libc.so.6' lacks nvrtc"), std::string::npos);
}

// DFA_NVRTC is the whole search: a file, or a folder of the usual names.
TEST(NvrtcAbsent, TheNameThatWasForcedIsNotReplacedByAnother) {
  ::setenv("DFA_NVRTC", "/dfa/is/not/there.so", 1);
  EXPECT_NE(Nvrtc(kSources).available().reason.find("/dfa/is/not/there.so"), std::string::npos);
  const testing::TempDir tree;
  ::setenv("DFA_NVRTC", tree.path().c_str(), 1);
  EXPECT_NE(Nvrtc(kSources).available().reason.find(tree.path().string()), std::string::npos);
  ::unsetenv("DFA_NVRTC");
}

}  // namespace
}  // namespace dfa::cuda
