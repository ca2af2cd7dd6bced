#include <gtest/gtest.h>

#include "attention/variants.h"

namespace dfa {
namespace {

void expect_accurate(const std::string& file) {
  const std::vector<std::string> lines = problem_lines(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::uint64_t seed = 100 + i;
    for (const Variant& variant : variants_of(parse_problem(lines[i]))) {
      Tensors t(lines[i], seed);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, seed), "") << variant.name;
    }
  }
}

TEST(Accuracy, EveryVariantMeetsTheRuleOnTheQuickProblems) {
  ASSERT_GE(problem_lines("test_quick.txt").size(), 30u);
  expect_accurate("test_quick.txt");
}

TEST(Accuracy, PastFailuresStayMended) { expect_accurate("regressions.txt"); }

}  // namespace
}  // namespace dfa
