// Hopper's backward by pairs in turn that walk a tile of queries for all query heads of their key
// head before the next, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class HeadsByTile : public HopperDevice {
 protected:
  static PlanOptions by_tile(const std::string& more) {
    return {
        .backend = "cuda",
        .algorithm = Algorithm::flash,
        .config = "BackwardConfig{target=cuda_sm90,cluster=2,gqa_inner_loop=true," + more + "}"};
  }

  const PlanOptions staying_ = by_tile("dq=serialized_fused,persistent=true,split_q=false");
  const PlanOptions in_parts_ = by_tile("dq=serialized_fused,persistent=true,split_q=true");
  const PlanOptions leaving_ = by_tile("dq=serialized,persistent=false,split_q=false");
};

TEST_F(HeadsByTile, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  EXPECT_TRUE(checked("bwd bf16 causal b2 hq6 hk2 s515 d128", 4, staying_));
  EXPECT_TRUE(checked("bwd fp16 causal b1 hq9 hk3 sq700 sk500 d64", 5, leaving_));
  EXPECT_TRUE(checked("bwd bf16 causal b1 hq4 hk1 sq500 sk900 d96", 6, in_parts_));
}

TEST_F(HeadsByTile, GroupsOfAnySizeMeetTheRule) {
  std::uint64_t seed = 100;
  for (const char* line :
       {"bwd bf16 causal b4 hq32 hk8 s1024 d128", "bwd bf16 causal b7 hq10 hk5 s1100 d64",
        "bwd fp16 causal b5 hq21 hk3 s700 d96", "bwd bf16 causal b40 hq4 hk1 sq300 sk1000 d128",
        "bwd bf16 causal b30 hq6 hk2 sq900 sk400 d64 layout(bshd)",
        "bwd bf16 b6 hq12 hk4 s1300 d128 window(-1,200)",
        "bwd fp16 b6 hq12 hk4 s1300 d64 window(300,50)", "bwd bf16 b3 hq8 hk2 s600 d128"}) {
    for (const PlanOptions& options : {staying_, leaving_}) {
      EXPECT_TRUE(checked(line, ++seed, options));
    }
  }
}

TEST_F(HeadsByTile, WideHeadsMeetTheRule) {
  EXPECT_TRUE(checked("bwd bf16 causal b4 hq12 hk4 s700 d192", 7, leaving_));
  EXPECT_TRUE(checked("bwd fp16 causal b2 hq8 hk1 sq500 sk1000 d192 dv128", 8, leaving_));
  EXPECT_TRUE(checked("bwd bf16 causal b8 hq6 hk3 s1333 d160", 9, leaving_));
  EXPECT_TRUE(checked("bwd bf16 b2 hq10 hk2 sq900 sk700 d192 window(-1,90)", 10, leaving_));
}

TEST_F(HeadsByTile, ThousandRunsGiveTheSameBits) {
  expect_same_bits("bwd bf16 causal b4 hq16 hk4 s1000 d128 deterministic", staying_, 1000);
  expect_same_bits("bwd fp16 causal b8 hq12 hk4 s600 d64 deterministic", leaving_, 1000);
  expect_same_bits("bwd bf16 causal b1 hq8 hk2 s1500 d96 deterministic", in_parts_, 1000);
  expect_same_bits("bwd bf16 causal b2 hq8 hk2 s1000 d192 deterministic", leaving_, 1000);
}

}  // namespace
}  // namespace dfa
