// Hopper's forward with keys dealt out in parts, which a second kernel joins, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class KeySplits : public HopperDevice {
 protected:
  static PlanOptions in_parts(int parts) {
    return on_hopper(",cluster=1,own_output=false,key_splits=" + std::to_string(parts));
  }
};

TEST_F(KeySplits, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  for (const char* line : {"fwd bf16 b2 hq4 hk2 sq1 sk700 d128", "fwd fp16 causal h2 s129 d64",
                           "fwd bf16 causal h1 sq100 sk33 d256"}) {
    EXPECT_TRUE(checked(line, 3, in_parts(4))) << line;
  }
}

TEST_F(KeySplits, EveryProblemOfTheFileMeetsTheRule) {
  EXPECT_GE(ran_of({"hopper_forward.txt"}, in_parts(3)), 25);
}

TEST_F(KeySplits, FewQueriesOfManyKeysMeetTheRule) {
  for (const char* d : {" d64", " d96", " d128", " d192", " d256"}) {
    for (const int parts : {2, 7, 32}) {
      EXPECT_TRUE(checked(std::string("fwd bf16 b2 hq16 hk2 sq1 sk9001") + d, 8, in_parts(parts)));
      EXPECT_TRUE(
          checked(std::string("fwd fp16 causal b1 hq7 hk1 sq9 sk4100") + d, 8, in_parts(parts)));
    }
  }
  EXPECT_TRUE(checked("fwd bf16 b1 h4 sq3 sk9001 d128 scale(20)", 8, in_parts(16)));
  EXPECT_TRUE(checked("fwd bf16 b1 h4 sq3 sk9001 d128 window(700,0)", 8, in_parts(16)));
}

TEST_F(KeySplits, ThousandRunsGiveTheSameBits) {
  expect_same_bits("fwd bf16 b2 hq16 hk2 sq1 sk9001 d128", in_parts(16), 1000);
}

TEST_F(KeySplits, EveryBudgetGivesTheSameBits) {
  expect_same_bits_at_budgets("fwd bf16 causal b1 h4 sq70 sk2000 d128", in_parts(8), 5);
}

}  // namespace
}  // namespace dfa
