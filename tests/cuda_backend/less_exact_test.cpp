// Less exact types as candidates of the scheduler on a GPU.
#include "spec/less_exact.h"

#include "cuda_backend/backend_test_case.h"
#include "run/points.h"

namespace dfa {
namespace {

using namespace testing::on_fake_cuda;

run::CandidatePlans candidates_of(const char* line) {
  return run::candidate_plans(parse_problem(line), {.backend = "cuda", .less_exact = true});
}

// Whether a GPU has e4m3 is said in one place, cuda/flash.cpp, and nowhere in the scheduler.
TEST_F(CudaBackendTest, E4m3IsACandidateWhereTheBackendHasItAndElseToldWhyNot) {
  const char* const line = "fwd bf16 b2 hq4 hk2 sq512 sk512 d128";
  Problem narrow = parse_problem(line);
  narrow.dtype = DType::e4m3;
  const Verdict has = cuda_backend().supports(narrow, {});
  const run::CandidatePlans found = candidates_of(line);
  ASSERT_GE(found.plans.size(), 2u);
  EXPECT_EQ(found.plans[0].any().problem.dtype, DType::bf16);
  EXPECT_EQ(found.plans[1].any().problem.dtype, has ? DType::e4m3 : DType::bf16);
  ASSERT_EQ(found.refused.size(), has ? 0u : 1u);
  if (has) {
    EXPECT_NE(run::label_of(found.plans[1]).find("DType::e4m3"), std::string::npos);
  } else {
    EXPECT_NE(found.refused[0].find(has.reason), std::string::npos) << found.refused[0];
  }
  // What no kernel of 8 bits has, whatever is open.
  const run::CandidatePlans wide = candidates_of("fwd bf16 b1 h2 s512 d512");
  EXPECT_EQ(wide.refused.size(), 1u);
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
