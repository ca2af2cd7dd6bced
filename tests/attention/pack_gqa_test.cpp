
#include "plan/pack_gqa.h"

#include <gtest/gtest.h>

#include <cstring>

#include "attention/variants.h"
#include "reference/check.h"

// Heads that are packed as rows are the same problem in the same memory: a backend that never hears
// of groups gives the outputs of the problem as it was asked.
namespace dfa {
namespace {

void expect_same(const std::string& line) {
  Tensors t(line, 11);
  const Problem asked = t.p, packed = with_pack_gqa(asked);
  ASSERT_NE(packed, asked) << line;
  const Plan plan = dfa::plan(packed, {.backend = "cpu"});
  forward(plan, t.forward_args());
  const CheckReport out = check_forward(asked, t.forward_args());
  EXPECT_TRUE(out.ok) << line << "\n" << out.summary();
}

TEST(PackedHeads, AreTheSameProblemInTheSameMemory) {
  expect_same("fwd fp32 b2 hq8 hk2 sq1 sk90 d32");
  expect_same("fwd fp32 causal b2 hq8 hk2 sq1 sk90 d32 layout(bshd)");
  expect_same("fwd bf16 b2 hq6 hk2 sq20 sk70 d40 dv24");
  expect_same("fwd fp16 b1 hq3 hk1 sq40 sk50 d32 window(60,60)");
  expect_same("fwd fp32 b2 hq4 hk2 sq3 sk33 d16 strides_q(2000,72,24) strides_o(999,60,20)");
}

// On a processor they are packed where every thread has a key head, so that bits must not tell.
TEST(PackedHeads, HaveTheBitsOfHeadsApart) {
  for (const char* line : {"fwd bf16 b1 hq8 hk1 sq1 sk700 d64", "fwd fp32 b1 hq6 hk1 sq5 sk90 d40",
                           "fwd fp16 b1 hq3 hk1 sq40 sk300 d128"}) {
    for (const Variant& variant : flash_variants_of(parse_problem(line))) {
      Tensors packed(line, 3), apart(line, 3);
      PlanOptions options = variant.options;
      options.threads = 1;
      EXPECT_NE(run(packed, options).why.find("rows of a tile"), std::string::npos) << line;
      options.threads = 2;
      EXPECT_EQ(run(apart, options).why.find("rows of a tile"), std::string::npos) << line;
      EXPECT_TRUE(packed.o == apart.o) << line << " " << variant.name;
      EXPECT_EQ(0, std::memcmp(packed.lse.data(), apart.lse.data(), 4 * apart.lse.size()))
          << line << " " << variant.name;
    }
  }
}

}  // namespace
}  // namespace dfa
