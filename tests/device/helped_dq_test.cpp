// Hopper's backward by pairs that stay, whose sums of dq come as they come and are zeroed and
// rounded by a warp of each block, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class HelpedDq : public HopperDevice {
 protected:
  const PlanOptions helped_{.backend = "cuda",
                            .algorithm = Algorithm::flash,
                            .config =
                                "BackwardConfig{target=cuda_sm90,dq=atomic_fused,cluster=2,"
                                "persistent=true,gqa_inner_loop=false}"};
};

TEST_F(HelpedDq, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  EXPECT_TRUE(checked("bwd bf16 causal b2 hq4 hk2 s600 d128", 4, helped_));
  EXPECT_TRUE(checked("bwd bf16 b30 hq6 hk3 sq300 sk200 d64", 5, helped_));  // all at the end
  EXPECT_TRUE(checked("bwd fp16 b40 h9 sq100 sk300 d96", 6, helped_));       // and by warps
}

TEST_F(HelpedDq, ItsProblemFileMeetsTheRule) {
  int ran = 0;
  std::uint64_t seed = 20;
  for (const std::string& line : problem_lines("hopper_backward.txt")) {
    const Problem p = parse_problem(line);
    if (p.d > 128 || p.dv > p.d || p.deterministic) continue;
    ran += checked(line, ++seed, helped_);
  }
  EXPECT_GE(ran, 20);
}

TEST_F(HelpedDq, TileEdgesMeetTheRule) {
  std::uint64_t seed = 60;
  for (const char* lengths : {"s1", "s64", "s65", "s127", "s129", "sq1 sk300", "sq300 sk1"}) {
    for (const char* dim : {" d64", " d96", " d128"}) {
      for (const char* rest : {"bwd bf16 causal b30 h7 ", "bwd bf16 b30 h7 "}) {
        EXPECT_TRUE(checked(std::string(rest) + lengths + dim, ++seed, helped_));
      }
    }
  }
}

// More work tiles than pairs, some of keys that no query sees; heads whose number is odd.
TEST_F(HelpedDq, ManyWorksMeetTheRule) {
  std::uint64_t seed = 110;
  for (const char* line :
       {"bwd bf16 b4 h8 sq200 sk2100 d128 window(100,0)", "bwd fp16 b6 h9 s777 d64",
        "bwd bf16 b4 h8 sq200 sk2100 d64 window(100,0)", "bwd bf16 causal b3 h40 s515 d64",
        "bwd fp16 causal b1 hq22 hk11 s1300 d96 layout(bshd)", "bwd bf16 b1 h37 s1100 d128",
        "bwd fp16 causal b1 h2 s4100 d64", "bwd bf16 causal b1 h2 s4100 d128"}) {
    EXPECT_TRUE(checked(line, ++seed, helped_));
  }
}

// Sums that are added to before they are zero, or read before they are complete, would show; and
// what a run leaves in them is found by the next.
TEST_F(HelpedDq, ManyRunsOnOtherDataMeetTheRule) {
  for (std::uint64_t seed = 200; seed < 206; ++seed) {
    EXPECT_TRUE(checked("bwd bf16 b4 h16 s600 d128", seed, helped_));
    EXPECT_TRUE(checked("bwd bf16 causal b4 h16 s600 d128", seed, helped_));
    EXPECT_TRUE(checked("bwd fp16 b4 h21 s600 d96", seed, helped_));
  }
}

}  // namespace
}  // namespace dfa
