#include "cpu/ceilings.h"

#include <gtest/gtest.h>

#include "cpu/cpuid.h"
#include "spec/config_names.h"

namespace dfa::cpu {
namespace {

TEST(Ceilings, EveryTargetOfThisProcessorHasThem) {
  for (const Target target : kTargets) {
    if (!has(target)) continue;
    const Ceilings c = measure_ceilings(target, 1, 0.15);
    EXPECT_EQ(c.threads, 1);
    // From a slow core that others share to more than any core does.
    EXPECT_GT(c.fp32_flops, 1e8) << name_of(target);
    EXPECT_LT(c.fp32_flops, 1e12) << name_of(target);
    EXPECT_EQ(c.fp16_flops, c.fp32_flops) << name_of(target);
    EXPECT_GT(c.bf16_flops, 1e8) << name_of(target);
    EXPECT_LT(c.bf16_flops, 1e13) << name_of(target);
    EXPECT_GT(c.copy_bytes, 1e7) << name_of(target);
    EXPECT_LT(c.copy_bytes, 1e12) << name_of(target);
  }
}

}  // namespace
}  // namespace dfa::cpu
