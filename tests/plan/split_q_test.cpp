#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/hopper_plan.h"
#include "plan/schedule.h"
#include "plan/validate.h"

namespace dfa {
namespace {

TEST(Sm90SplitQ, WorksOfTheLastRoundAreInPartsWhereItIsShorterSo) {
  const auto parts = [](const char* line, int sms = 132) {
    const Problem p = parse_problem(line);
    const BackwardConfig c = hopper_backward(p);
    const SplitQ found = select_split_q(p, c, sms);
    EXPECT_TRUE(c.split_q || found.parts == 1) << line;
    const auto work_tiles =
        static_cast<int>((p.sk + c.cluster_keys() - 1) / c.cluster_keys() * p.b * p.hk);
    std::vector<int> taken(static_cast<std::size_t>(work_tiles));
    for (int n = 0; n < found.count(work_tiles); ++n) {
      const int work = found.work(n), part = found.part(n);
      const bool whole = work < found.first || work >= found.end;
      EXPECT_EQ(part == 0, whole || found.parts == 1) << line;
      EXPECT_EQ(taken[static_cast<std::size_t>(work)]++, std::max(part - 1, 0)) << line;
    }
    for (int n = 0; n < work_tiles; ++n) {
      const bool whole = n < found.first || n >= found.end;
      EXPECT_EQ(taken[static_cast<std::size_t>(n)], whole ? 1 : found.parts) << line;
    }
    return std::pair(found.first, found.parts);
  };
  EXPECT_EQ(parts("bwd bf16 b1 h32 s16384 d64"), std::pair(2046, 13));  // two of 2048 are left
  EXPECT_EQ(parts("bwd bf16 b4 h32 s4096 d64 deterministic"), std::pair(2046, 7));
  EXPECT_EQ(parts("bwd bf16 b1 h2 s4096 d128"), std::pair(0, 2));
  EXPECT_EQ(parts("bwd bf16 b1 h2 s4096 d128", 64), std::pair(32, 1));  // 32 pairs
  EXPECT_EQ(parts("bwd bf16 b1 h5 s4096 d96"), std::pair(66, 4));
  EXPECT_EQ(parts("bwd bf16 b1 h4 s1024 d128"), std::pair(0, 4));  // work tiles of few steps
  EXPECT_EQ(parts("bwd bf16 b1 h4 s2048 d64"), std::pair(0, 2));
  EXPECT_EQ(parts("bwd bf16 b1 h5 s2048 d128"), std::pair(40, 1));  // would be two rounds
  // Under a mask all of few work tiles.
  EXPECT_EQ(parts("bwd bf16 causal b1 hq32 hk8 s2048 d128"), std::pair(0, 2));
  EXPECT_EQ(parts("bwd bf16 causal b1 hq28 hk4 s4096 d128"), std::pair(0, 2));
  EXPECT_EQ(parts("bwd bf16 causal b1 hq32 hk8 s1024 d64"), std::pair(0, 3));
  EXPECT_EQ(parts("bwd bf16 causal b1 h4 s4096 d128"), std::pair(0, 2));
  EXPECT_EQ(parts("bwd bf16 causal b1 h5 s4096 d128"), std::pair(80, 1));  // more than pairs
  for (const char* line :
       {"bwd bf16 causal b1 h4 s4096 d128", "bwd bf16 causal b1 h1 s16384 d64"}) {
    EXPECT_EQ(hopper_backward(parse_problem(line)).dq, DqAccumulation::atomic_fused) << line;
  }
  for (const char* line :
       {"bwd bf16 b4 h16 s4096 d128", "bwd bf16 b1 h16 s16384 d128", "bwd bf16 b4 h21 s4096 d96",
        "bwd bf16 causal b1 hq32 hk8 s4096 d128", "bwd bf16 b16 h16 s1024 d128",
        "bwd bf16 causal b1 h16 s16384 d128", "bwd bf16 b1 h33 s4096 d128",
        "bwd bf16 b1 h8 s2048 d128", "bwd bf16 b1 h2 s4096 d192"}) {
    EXPECT_FALSE(hopper_backward(parse_problem(line)).split_q) << line;
  }
  const auto reason = [](const char* line) {
    const Problem p = parse_problem(line);
    BackwardConfig config = hopper_backward(p);
    config.split_q = true;
    return validate_config(config, p, kHopper90).reason;
  };
  EXPECT_EQ(reason("bwd bf16 b4 h16 s4096 d128"), "");
  for (const char* line : {"bwd bf16 h1 s4096 d128 window(900,0)", "bwd bf16 h1 s4096 d192",
                           "bwd bf16 h1 s4096 d96 deterministic"}) {
    EXPECT_EQ(reason(line).find("split_q=true is of persistent=true"), 0u) << line;
  }
}

}  // namespace
}  // namespace dfa
