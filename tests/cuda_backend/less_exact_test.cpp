// Less exact types as candidates of the scheduler on a GPU.
#include "spec/less_exact.h"

#include "cuda_backend/backend_test_case.h"
#include "run/points.h"

namespace dfa {
namespace {

using namespace testing::on_fake_cuda;

run::CandidatePlans candidates_of(const char* line) {
  return run::candidate_plans(parse_problem(line),
                              {.backend = "cuda",
                               .less_exact = true,
                               .memory_bytes = 1 << 30});  // the made-up card has little
}

// Which problems a GPU has in e4m3 is said by the plan's rules, and nowhere in the scheduler.
TEST_F(CudaBackendTest, E4m3IsACandidateWhereTheBackendHasItAndElseToldWhyNot) {
  const run::CandidatePlans found = candidates_of("fwd bf16 b2 hq4 hk2 sq512 sk512 d128");
  ASSERT_GE(found.plans.size(), 2u);
  EXPECT_EQ(found.plans[0].any().problem.dtype, DType::bf16);
  EXPECT_EQ(found.plans[1].any().problem.dtype, DType::e4m3);
  EXPECT_TRUE(found.refused.empty());
  EXPECT_NE(run::label_of(found.plans[1]).find("DType::e4m3"), std::string::npos);
  const char* const wide_line = "fwd bf16 b1 h2 s512 d512";
  Problem wide_8_bits = parse_problem(wide_line);
  wide_8_bits.dtype = DType::e4m3;
  const run::CandidatePlans wide = candidates_of(wide_line);
  ASSERT_EQ(wide.refused.size(), 1u);
  const std::string reason = cuda_backend().supports(wide_8_bits, {}).reason;
  EXPECT_NE(wide.refused[0].find(reason), std::string::npos) << wide.refused[0];
  for (const auto& plans : wide.plans) EXPECT_EQ(plans.any().problem.dtype, DType::bf16);
}

TEST_F(CudaBackendTest, Tf32IsACandidateOfFp32) {
  const run::CandidatePlans found = candidates_of("fwd fp32 b1 h2 s512 d64");
  ASSERT_GE(found.plans.size(), 2u);
  EXPECT_EQ(found.plans[1].any().problem.dtype, DType::tf32);
  EXPECT_TRUE(found.refused.empty());
}

}  // namespace
}  // namespace dfa
