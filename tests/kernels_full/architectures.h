#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cuda/nvrtc.h"
#include "dfa/error.h"

namespace dfa::cuda {

// One that kernels are compiled for.
struct Architecture {
  int number;
  const char* name;
};

class OnArchitectures : public testing::TestWithParam<Architecture> {};

// Skips the test that calls it where there is no compiler.
#define DFA_NEEDS_NVRTC(nvrtc) \
  if (!(nvrtc).available()) GTEST_SKIP() << (nvrtc).available().reason

// The full tier compiles for the oldest, the first with asynchronous copies and Hopper; the program
// of the tier `all` for the others too.
#ifdef DFA_EVERY_ARCHITECTURE
inline constexpr Architecture kArchitectures[] = {
    {75, "sm_75"}, {80, "sm_80"}, {86, "sm_86"}, {89, "sm_89"}, {90, "sm_90a"}};
#else
inline constexpr Architecture kArchitectures[] = {{75, "sm_75"}, {80, "sm_80"}, {90, "sm_90a"}};
#endif

#define DFA_ON_ARCHITECTURES(suite)                            \
  INSTANTIATE_TEST_SUITE_P(                                    \
      Architectures, suite, testing::ValuesIn(kArchitectures), \
      [](const auto& architecture) { return std::string(architecture.param.name); })

// Large spills are errors of the compiler, small ones here.
inline CompiledKernel compile_without_stack(const Nvrtc& nvrtc, const CompileRequest& request) {
  try {
    CompiledKernel kernel = nvrtc.compile(request);
    EXPECT_EQ(kernel.warning, "") << request.name_expression;
    EXPECT_EQ(kernel.stack_bytes, 0) << request.name_expression;
    EXPECT_FALSE(kernel.cubin.empty()) << request.name_expression;
    return kernel;
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    return {};
  }
}

}  // namespace dfa::cuda
