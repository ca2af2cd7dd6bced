// Lists of blocks by Hopper's own kernel on a card.
#include "device/device_case.h"
#include "plan/select.h"
#include "random_lines.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

class HopperBlocks : public HopperDevice {};

TEST_F(HopperBlocks, EveryProblemMeetsTheRuleOnEveryConfiguration) {
  int lines = 0;
  for (const std::string& line : problem_lines("blocks.txt")) {
    const auto candidates = sm90_candidates(parse_problem(line), cuda().limits());
    lines += candidates.empty() ? 0 : 1;
    for (const ForwardConfig& config : candidates) {
      EXPECT_TRUE(dfa::checked(line, 3, {.backend = "cuda", .config = to_text(config)})) << line;
    }
  }
  EXPECT_GE(lines, 11);
}

TEST_F(HopperBlocks, RandomListsMeetTheRule) {
  int runs = 0;
  fuzz({"bf16"}, [&](const std::string&, std::uint64_t seed) {
    Dice dice(4000 + seed);
    const auto dim = [&] { return std::to_string(8 * (5 + dice.below(28))); };
    std::string line = random_lists_line(dice, dice.pick({"fp16", "bf16"}),
                                         "d" + dim() + " dv" + dim(), dice.pick({64, 128}));
    for (const char* logits : {" softcap(20)", " alibi", " sink", " scale(20)"}) {
      if (dice.below(4) == 0) line += logits;
    }
    const auto all = sm90_candidates(parse_problem(line), cuda().limits());
    return checked_by_one_of(all, dice, line, seed, runs);
  });
  EXPECT_GT(runs, 0);
}

TEST_F(HopperBlocks, GradientsOfEveryProblemMeetTheRule) {
  int lines = 0;
  for (const std::string& line : problem_lines("blocks.txt")) {
    const Problem p = parse_problem(line);
    if (p.pass == Pass::forward) continue;
    for (const BackwardConfig& config : sm90_backward_candidates(p, cuda().limits())) {
      EXPECT_TRUE(dfa::checked(line, 3, {.backend = "cuda", .config = to_text(config)})) << line;
      ++lines;
    }
  }
  EXPECT_GE(lines, 4);
}

TEST_F(HopperBlocks, GradientsOfRandomListsMeetTheRule) {
  int runs = 0;
  fuzz({"bf16"}, [&](const std::string&, std::uint64_t seed) {
    Dice dice(5000 + seed);
    const char* dims = dice.pick({"d64", "d96", "d128", "d128 dv64", "d72"});
    std::string line = random_lists_line(dice, dice.pick({"fp16", "bf16"}), dims, 128);
    line.replace(0, 3, "bwd");
    for (const char* logits : {" sink", " scale(3)"}) {
      if (dice.below(4) == 0) line += logits;
    }
    const auto all = sm90_backward_candidates(parse_problem(line), cuda().limits());
    return checked_by_one_of(all, dice, line, seed, runs);
  });
  EXPECT_GT(runs, 0);
}

// Work tiles come in the order in which blocks ask for them, which is another in every run.
TEST_F(HopperBlocks, RunsLeaveTheSameBits) {
  for (const char* line : {"fwd bf16 b1 h16 s8192 d128 blocks(random,0.1,1,partial)",
                           "fwd bf16 causal b2 hq8 hk2 s4096 d64 scale(20) "
                           "blocks(random,0.5,2,128x128,b,h,partial)",
                           "fwd fp16 b1 h8 s4096 d256 blocks(random,0.3,3,64x64)"}) {
    expect_same_bits(line, on_hopper(""), 200);
  }
}

TEST_F(HopperBlocks, EveryBudgetLeavesTheSameBits) {
  expect_same_bits_at_budgets("fwd bf16 causal b1 hq8 hk2 s2048 d128 blocks(random,0.3,1,partial)",
                              on_hopper(""), 13);
}

}  // namespace
}  // namespace dfa
