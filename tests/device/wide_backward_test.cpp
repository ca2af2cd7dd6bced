// Hopper's backward of d or dv from 129 on, on a real device: named, so that nothing else runs in
// its place.
#include "device/device_case.h"

namespace dfa {
namespace {

class WideBackward : public HopperDevice {
 protected:
  static PlanOptions wide(const std::string& more) {
    return {.backend = "cuda",
            .algorithm = Algorithm::flash,
            .config = "BackwardConfig{target=cuda_sm90,gqa_inner_loop=false," + more + "}"};
  }

  // In turn, and as sums come, by one block and by pairs, which fit but for d 256 with dv 192;
  // pairs that stay, and those that zero and round sums in the same grid.
  const PlanOptions in_order_ = wide("dq=serialized,cluster=1,persistent=false");
  const PlanOptions alone_ = wide("dq=atomic,cluster=1,persistent=false");
  const PlanOptions pairs_ = wide("dq=atomic,cluster=2,persistent=false");
  const PlanOptions pairs_staying_ = wide("dq=atomic,cluster=2,persistent=true");
  const PlanOptions helped_ = wide("dq=atomic_fused,cluster=2,persistent=true");
  const PlanOptions pairs_in_order_ = wide("dq=serialized,cluster=2,persistent=false");
};

TEST_F(WideBackward, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  for (const char* line : {"fwdbwd bf16 causal b1 hq4 hk2 s129 d256", "fwdbwd fp16 b1 h2 s70 d192",
                           "fwdbwd bf16 b1 h1 sq65 sk130 d256 window(30,9)"}) {
    EXPECT_TRUE(checked(line, 3, in_order_));
  }
  for (const char* line : {"fwdbwd bf16 causal b1 hq4 hk2 s129 d192", "fwdbwd fp16 b1 h2 s70 d256",
                           "fwdbwd bf16 b1 h1 sq65 sk130 d160 window(30,9)"}) {
    EXPECT_TRUE(checked(line, 4, pairs_));
    EXPECT_TRUE(checked(line, 5, alone_));
    EXPECT_TRUE(checked(line, 6, pairs_in_order_));
    EXPECT_TRUE(checked(line, 8, pairs_staying_));
    EXPECT_TRUE(checked(line, 10, helped_));
  }
}

TEST_F(WideBackward, PairsThatStayMeetTheRule) {
  EXPECT_GE(ran_of({"hopper_wide_backward.txt"}, pairs_staying_), 28);
  for (const char* line :
       {"bwd bf16 causal b4 h12 s1000 d256", "bwd bf16 b40 h6 s130 d192",
        "bwd bf16 b2 h8 sq300 sk1500 d192", "bwd fp16 b2 hq12 hk4 s2100 d192 window(50,20)"}) {
    for (int time = 0; time < 3; ++time) EXPECT_TRUE(checked(line, 8 + time, pairs_staying_));
  }
}

// By the warps of pairs that stay, between work tiles, and by blocks behind them: of few work tiles
// and of many, of a tile, of keys that no query sees.
TEST_F(WideBackward, SumsRoundedInTheSameGridMeetTheRule) {
  EXPECT_GE(ran_of({"hopper_wide_backward.txt"}, helped_), 28);
  for (const char* line :
       {"bwd bf16 causal b4 h12 s1000 d256", "bwd bf16 b40 h6 s130 d192",
        "bwd fp16 causal b2 hq12 hk4 s2100 d192 layout(bshd)", "bwd bf16 b5 h37 s65 d256",
        "bwd bf16 b4 h8 sq200 sk2100 d256 window(100,0)", "bwd bf16 b3 h21 s500 d160 dv136"}) {
    for (int time = 0; time < 3; ++time) EXPECT_TRUE(checked(line, 8 + time, helped_));
  }
}

TEST_F(WideBackward, EdgesOfSumsRoundedInTheSameGridMeetTheRule) {
  std::uint64_t seed = 60;
  for (const char* lengths : {"s1", "s64", "s65", "s127", "s129", "sq1 sk300", "sq300 sk1"}) {
    for (const char* rest : {"bwd bf16 causal b30 h7 ", "bwd bf16 b30 h7 "}) {
      EXPECT_TRUE(checked(std::string(rest) + lengths + " d256", ++seed, helped_));
      EXPECT_TRUE(checked(std::string(rest) + lengths + " d192", ++seed, helped_));
    }
  }
}

TEST_F(WideBackward, EveryProblemOfTheFileMeetsTheRule) {
  EXPECT_GE(ran_of({"hopper_wide_backward.txt"}, in_order_), 28);
  EXPECT_GE(ran_of({"hopper_wide_backward.txt"}, alone_), 28);
}

TEST_F(WideBackward, EveryProblemOfTheFileMeetsTheRuleByPairs) {
  EXPECT_GE(ran_of({"hopper_wide_backward.txt"}, pairs_), 28);
  EXPECT_GE(ran_of({"hopper_wide_backward.txt"}, pairs_in_order_), 28);
}

TEST_F(WideBackward, ThousandRunsGiveTheSameBits) {
  const PlanOptions planned{.backend = "cuda", .algorithm = Algorithm::flash};
  for (const char* line : {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d256 deterministic",
                           "fwdbwd fp16 b1 h4 sq333 sk777 d192 deterministic",
                           "fwdbwd bf16 b4 h16 s1000 d256 deterministic",
                           "fwdbwd bf16 b2 hq4 hk2 s900 d192 window(300,100) deterministic"}) {
    expect_same_bits(line, planned, 1000);
    expect_same_bits(line, in_order_, 100);
    expect_same_bits(line, pairs_in_order_, 1000);
  }
}

}  // namespace
}  // namespace dfa
