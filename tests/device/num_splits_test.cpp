// Hopper's forward with its last work tiles dealt out in splits of their keys, which a second
// kernel joins, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class SplitKv : public HopperDevice {
 protected:
  static PlanOptions split_kv_by(int num_splits, const std::string& more = "") {
    return on_hopper(",num_splits=" + std::to_string(num_splits) + more);
  }
};

TEST_F(SplitKv, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  for (const char* line : {"fwd bf16 b2 hq4 hk2 sq1 sk700 d128", "fwd fp16 causal h2 s129 d96",
                           "fwd bf16 causal h1 sq100 sk33 d256", "fwd bf16 h6 sq300 sk500 d192"}) {
    EXPECT_TRUE(checked(line, 3, split_kv_by(4))) << line;
  }
  EXPECT_TRUE(checked("fwd bf16 h3 sq700 sk500 d256", 3, split_kv_by(3, ",cluster=2")));
}

TEST_F(SplitKv, EveryProblemOfTheFileMeetsTheRule) {
  EXPECT_GE(ran_of({"hopper_forward.txt"}, split_kv_by(7, ",block_q=128,warps=8")), 25);
}

TEST_F(SplitKv, FewQueriesOfManyKeysMeetTheRule) {
  for (const char* d : {" d64", " d96", " d128", " d192", " d256"}) {
    for (const int num_splits : {2, 66, 132}) {
      EXPECT_TRUE(
          checked(std::string("fwd bf16 b2 hq16 hk2 sq1 sk9001") + d, 8, split_kv_by(num_splits)));
      EXPECT_TRUE(checked(std::string("fwd fp16 causal b1 hq7 hk1 sq9 sk4100") + d, 8,
                          split_kv_by(num_splits)));
    }
  }
  EXPECT_TRUE(checked("fwd bf16 b1 h4 sq3 sk9001 d128 scale(20)", 8, split_kv_by(132)));
  EXPECT_TRUE(checked("fwd bf16 b1 h4 sq3 sk9001 d128 window(700,0)", 8, split_kv_by(132)));
}

// Behind whole rounds, by blocks of their own and by pairs.
TEST_F(SplitKv, LastRoundsMeetTheRule) {
  for (const char* line :
       {"fwd bf16 b4 h8 s4096 d256", "fwd fp16 h9 s5000 d128",
        "fwd bf16 b2 h11 s1500 d96 scale(20)", "fwd bf16 h17 s2100 d192 layout(bshd)",
        "fwd bf16 b1 h8 sq3000 sk5000 d256"}) {
    const std::string alone = ",cluster=1,block_q=128,block_k=64,warps=8,q_columns_in_regs=0";
    EXPECT_TRUE(checked(line, 4, split_kv_by(132, alone))) << line;
  }
  for (const char* line : {"fwd bf16 b4 h8 s4096 d256", "fwd fp16 b1 h8 sq3000 sk5000 d256",
                           "fwd bf16 h17 s2100 d192 layout(bshd)"}) {
    EXPECT_TRUE(checked(line, 4, split_kv_by(66, ",cluster=2"))) << line;
  }
}

TEST_F(SplitKv, ThousandRunsGiveTheSameBits) {
  expect_same_bits("fwd bf16 b2 hq16 hk2 sq1 sk9001 d128", split_kv_by(132), 1000);
}

TEST_F(SplitKv, EveryBudgetGivesTheSameBits) {
  expect_same_bits_at_budgets("fwd bf16 causal b1 h4 sq70 sk2000 d128", split_kv_by(50), 5);
  expect_same_bits_at_budgets("fwd bf16 b1 h9 s2000 d256", split_kv_by(66, ",cluster=2"), 5);
}

}  // namespace
}  // namespace dfa
