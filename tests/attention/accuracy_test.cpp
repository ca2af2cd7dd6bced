#include <gtest/gtest.h>

#include <cctype>

#include "attention/variants.h"

namespace dfa {
namespace {

void expect_accurate(const std::string& line, std::uint64_t seed) {
  Truths truths;
  for (const Variant& variant : variants_of(parse_problem(line))) {
    Tensors t(line, seed);
    run(t, variant.options);
    EXPECT_EQ(fault(t, variant, seed, {.truths = &truths}), "") << variant.name;
  }
}

class Accuracy : public testing::TestWithParam<std::string> {};

TEST_P(Accuracy, EveryVariantMeetsTheRule) { expect_accurate(GetParam(), 100); }

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Quick, Accuracy, testing::ValuesIn(problem_lines("test_quick.txt")),
                         test_name);
INSTANTIATE_TEST_SUITE_P(WideHeads, Accuracy, testing::ValuesIn(problem_lines("wide_heads.txt")),
                         test_name);

TEST(AccuracyFiles, TheQuickProblemsAreThere) {
  EXPECT_GE(problem_lines("test_quick.txt").size(), 40u);
  EXPECT_GE(problem_lines("wide_heads.txt").size(), 20u);
}

// The standard algorithm, and the portable engine at the least, twice.
TEST(AccuracyFiles, VariantsCoverEveryTargetOfThisProcessor) {
  if (!kEveryTarget) GTEST_SKIP() << "two targets show races";
  const auto targets = static_cast<std::size_t>(cpu::highest_target()) + 1;
  EXPECT_EQ(variants_of(parse_problem("fwd bf16 h1 s8 d8")).size(), 2 * targets + 1);
}

TEST(AccuracyFiles, PastFailuresStayMended) {
  for (const std::string& line : problem_lines("regressions.txt")) expect_accurate(line, 1);
}

}  // namespace
}  // namespace dfa
