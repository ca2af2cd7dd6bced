#include <gtest/gtest.h>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Full, EveryVariantMeetsTheRuleOnTheLargerProblems) {
  const std::vector<std::string> lines = problem_lines("test_full.txt");
  ASSERT_GE(lines.size(), 8u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    Truths truths;
    for (const Variant& variant : variants_of(parse_problem(lines[i]))) {
      Tensors t(lines[i], 7 + i);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 7 + i, {.max_flops = 3e8, .seed = i, .truths = &truths}), "")
          << variant.name;
    }
  }
}

// 64k tokens: standard attention would need 17 GB for S; flash stays near its inputs.
TEST(Full, SixtyFourThousandTokensRunInBoundedMemory) {
  Tensors t("fwd bf16 b1 h1 s65536 d64");
  const Plan p = run(t, {});
  EXPECT_LT(p.workspace_bytes, 64u << 20);
  const CheckReport report = check_forward(t.p, t.forward_args(), {.max_flops = 1e8});
  EXPECT_TRUE(report.ok) << report.summary();
}

}  // namespace
}  // namespace dfa
