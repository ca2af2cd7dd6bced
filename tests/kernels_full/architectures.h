#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels_full/test_kernels.h"

namespace dfa::cuda {

// One that kernels are compiled for.
struct Architecture {
  int number;
  const char* name;
};

class OnArchitectures : public testing::TestWithParam<Architecture> {};

// The full tier compiles for the oldest, the first with asynchronous copies and Hopper, and what it
// says of kernels it shows by a few of them; the program of the tier `all` compiles all of them,
// for the other architectures too.
#ifdef DFA_EVERY_CASE
inline constexpr bool kEveryKernel = true;
inline constexpr Architecture kArchitectures[] = {
    {75, "sm_75"}, {80, "sm_80"}, {86, "sm_86"}, {89, "sm_89"}, {90, "sm_90a"}};
#else
inline constexpr bool kEveryKernel = false;
inline constexpr Architecture kArchitectures[] = {{75, "sm_75"}, {80, "sm_80"}, {90, "sm_90a"}};
#endif

// Cases of both tiers, and those of `all` alone.
template <typename Case>
std::vector<Case> cases(std::initializer_list<Case> both,
                        std::type_identity_t<std::initializer_list<Case>> all) {
  std::vector<Case> some = both;
  if (kEveryKernel) some.insert(some.end(), all.begin(), all.end());
  return some;
}

// Of a grid of cases the full tier takes every second, a Latin square: each row with half of the
// columns, each column with half of the rows. place: the sum of both.
inline bool taken(int place) { return kEveryKernel || place % 2 == 0; }

#define DFA_ON_ARCHITECTURES(suite)                            \
  INSTANTIATE_TEST_SUITE_P(                                    \
      Architectures, suite, testing::ValuesIn(kArchitectures), \
      [](const auto& architecture) { return std::string(architecture.param.name); })

}  // namespace dfa::cuda
