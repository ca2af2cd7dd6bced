// Hopper's backward by pairs that stay, work tiles of which are in parts of their queries (the last
// ones, or under a mask the longest of few), on a real device.
#include "device/device_case.h"
#include "plan/schedule.h"

namespace dfa {
namespace {

class SplitQTest : public HopperDevice {
 protected:
  static PlanOptions in_parts(const std::string& more) {
    return {.backend = "cuda",
            .algorithm = Algorithm::flash,
            .config = "BackwardConfig{target=cuda_sm90,cluster=2,persistent=true,split_q=true," +
                      more + "}"};
  }

  // Sums of dq as they come, zeroed and rounded by a warp or by kernels, and in turn.
  const PlanOptions helped_ = in_parts("dq=atomic_fused,gqa_inner_loop=false");
  const PlanOptions as_they_come_ = in_parts("dq=atomic,gqa_inner_loop=false");
  const PlanOptions in_order_ = in_parts("dq=serialized_fused");

  void check_all(const std::string& line, std::uint64_t seed) {
    for (const PlanOptions& options : {helped_, as_they_come_, in_order_}) {
      EXPECT_TRUE(checked(line, seed++, options));
    }
  }
};

TEST_F(SplitQTest, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  EXPECT_TRUE(checked("bwd bf16 b1 hq4 hk2 sq700 sk300 d128", 4, helped_));
  EXPECT_TRUE(checked("bwd fp16 b1 h70 sq500 sk200 d64", 5, as_they_come_));
  EXPECT_TRUE(checked("bwd bf16 b1 h5 sq1000 sk300 d96", 6, in_order_));
}

TEST_F(SplitQTest, ItsProblemFileMeetsTheRule) {
  int ran = 0;
  std::uint64_t seed = 20;
  for (const std::string& line : problem_lines("hopper_backward.txt")) {
    const Problem p = parse_problem(line);
    if (p.d > 128 || p.dv > p.d || p.mask.left >= 0) continue;
    check_all(line, seed += 3);
    ++ran;
  }
  EXPECT_GE(ran, 15);
}

// On 66 pairs: work tiles that fill less than a round, and a few, a half and two thirds of one
// more; in two to many parts, of one tile and of groups of heads.
TEST_F(SplitQTest, LastRoundsOfAnyLengthMeetTheRule) {
  std::uint64_t seed = 100;
  for (const char* line :
       {"bwd bf16 b1 h2 sq2000 sk600 d128", "bwd bf16 b1 h68 sq600 sk200 d128",
        "bwd bf16 b1 h25 sq400 sk1000 d128", "bwd bf16 b2 h55 sq700 sk256 d64",
        "bwd fp16 b1 hq44 hk11 sq300 sk2500 d64 layout(bshd)", "bwd fp16 b1 h21 sq500 sk1100 d96",
        "bwd bf16 b1 hq6 hk1 sq65 sk9000 d128", "bwd bf16 b3 h23 sq129 sk300 d64"}) {
    check_all(line, seed += 3);
  }
}

// Fewer work tiles than 66 pairs and as many, all of them in parts and the longest alone; heads in
// groups and each for itself; keys no query sees, and queries that see keys ahead.
TEST_F(SplitQTest, FewWorksUnderAMaskMeetTheRule) {
  std::uint64_t seed = 300;
  for (const char* line :
       {"bwd bf16 causal b1 hq32 hk8 s1024 d128", "bwd bf16 causal b1 hq28 hk4 s4096 d128",
        "bwd bf16 causal b1 hq8 hk2 s3000 d64", "bwd fp16 causal b1 h5 s2900 d96",
        "bwd bf16 causal b1 hq16 hk4 sq900 sk1500 d128 layout(bshd)",
        "bwd bf16 causal b1 hq6 hk2 sq1500 sk900 d128", "bwd bf16 causal b1 h5 s2500 d64",
        "bwd fp16 b1 hq12 hk4 s1300 d128 window(-1,200)"}) {
    const BackwardConfig pairs{.block_q = 64, .block_k = 128, .cluster = 2, .split_q = true};
    EXPECT_GT(select_split_q(parse_problem(line), pairs, 132).parts, 1) << line;
    check_all(line, seed += 3);
  }
}

// Sums of parts that are added up before they are there would show; and what a run leaves in their
// places is found by the next.
TEST_F(SplitQTest, ManyRunsOnOtherDataMeetTheRule) {
  for (std::uint64_t seed = 200; seed < 215; seed += 3) {
    check_all("bwd bf16 b4 h17 s600 d128", seed);
    check_all("bwd bf16 b2 h17 s1100 d64", seed);
    check_all("bwd bf16 causal b1 hq12 hk6 s1500 d128", seed);
  }
}

TEST_F(SplitQTest, ThousandRunsGiveTheSameBits) {
  expect_same_bits("bwd bf16 b1 h23 s1000 d128 deterministic", in_order_, 1000);
  expect_same_bits("bwd fp16 b2 hq34 hk17 s600 d64 deterministic", in_order_, 1000);
  expect_same_bits("bwd bf16 causal b1 hq8 hk2 s1500 d128 deterministic", in_order_, 1000);
}

}  // namespace
}  // namespace dfa
