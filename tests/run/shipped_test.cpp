#include "run/shipped.h"

#include <gtest/gtest.h>

#include "attention/registry.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa::run {
namespace {

TEST(Shipped, EveryRowIsOfAKindOfCardAndItsConfigurationIsLegalThere) {
  const Limits limits = gpu_limits(90);
  EXPECT_GE(shipped_rows().size(), 4u);
  for (const profile::Row& row : shipped_rows()) {
    EXPECT_EQ(row.machine.card, "NVIDIA H200");
    Problem problem = parse_problem(row.problem);
    EXPECT_EQ(to_line(problem), row.problem);
    problem.dtype = row.point.dtype;  // fp32 may be followed less exactly, in tf32
    const std::string& config = row.point.label;
    const Verdict legal =
        problem.pass == Pass::backward
            ? validate_config(parse_config(config, BackwardConfig{}), problem, limits)
            : validate_config(parse_config(config, ForwardConfig{}), problem, limits);
    EXPECT_TRUE(legal.ok) << row.point.label << ": " << legal.reason;
    EXPECT_GT(row.point.time_s, 0);
    EXPECT_GT(row.point.power_w.value_or(0), 200) << row.problem;
    EXPECT_GT(row.point.dynamic_w.value_or(0), 200) << row.problem;
    EXPECT_FALSE(row.date.empty());
  }
}

// Rows of other kernels are not used: to be measured again, or named anew where the text of sources
// changed and no kernel's code did.
TEST(Shipped, EveryRowIsOfTheseKernels) {
  for (const profile::Row& row : shipped_rows()) {
    const Pass pass = parse_problem(row.problem).pass;
    EXPECT_EQ(row.machine.kernels, find_backend(row.backend).kernels(pass)) << row.problem;
  }
}

TEST(Shipped, WithoutARowTheReasonNamesProblemCardAndVersion) {
  const KnownPoints known =
      shipped_points(parse_problem("fwd fp32 b1 h1 s8 d8"), {.backend = "cpu"});
  EXPECT_TRUE(known.candidates.empty());
  EXPECT_NE(known.told.find("'fwd fp32 b1 hq1 hk1 sq8 sk8 d8'"), std::string::npos) << known.told;
}

}  // namespace
}  // namespace dfa::run
