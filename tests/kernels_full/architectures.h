#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels_full/test_kernels.h"

namespace dfa::cuda {

// One that kernels are compiled for.
struct Architecture {
  int number;
  const char* name;
};

class OnArchitectures : public testing::TestWithParam<Architecture> {};

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

}  // namespace dfa::cuda
