// Chunked and prefix masks by Hopper's own kernels on a card.
#include "device/device_case.h"
#include "plan/select.h"
#include "random_lines.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

class HopperRanges : public HopperDevice {};

TEST_F(HopperRanges, EveryProblemMeetsTheRuleOnEveryConfiguration) {
  int forward = 0, backward = 0;
  for (const std::string& line : problem_lines("masks.txt")) {
    const Problem p = parse_problem(line);
    for (const ForwardConfig& config : sm90_candidates(p, cuda().limits())) {
      EXPECT_TRUE(dfa::checked(line, 3, {.backend = "cuda", .config = to_text(config)})) << line;
      ++forward;
    }
    if (p.pass == Pass::forward) continue;
    for (const BackwardConfig& config : sm90_backward_candidates(p, cuda().limits())) {
      EXPECT_TRUE(dfa::checked(line, 3, {.backend = "cuda", .config = to_text(config)})) << line;
      ++backward;
    }
  }
  EXPECT_GE(forward, 40);
  EXPECT_GE(backward, 20);
}

std::string random_ranges_line(Dice& dice, const char* pass) {
  const auto upto = [&](std::int64_t most) { return std::to_string(1 + dice.below(most)); };
  std::string line = std::string(pass) + " " + dice.pick({"fp16", "bf16"});
  line +=
      dice.below(2) == 0 ? " causal chunk(" + upto(700) + ")" : " causal prefix(" + upto(700) + ")";
  line += dice.pick({" hq4 hk1", " hq2 hk2"});
  line += dice.below(3) == 0 ? " lens(" + upto(300) + "," + upto(900) + ") lens_k(" + upto(900) +
                                   "," + upto(900) + ")"
                             : " b2 sq" + upto(900) + " sk" + upto(900);
  for (const char* logits : {" softcap(20)", " alibi", " sink"}) {
    if (dice.below(4) == 0) line += logits;
  }
  return line + dice.pick({" d64", " d96", " d128", " d72", " d256"});
}

template <typename Candidates>
void expect_random_masks_right(const char* pass, std::uint64_t first,
                               const Candidates& candidates) {
  int runs = 0;
  fuzz({"bf16"}, [&](const std::string&, std::uint64_t seed) {
    Dice dice(first + seed);
    const std::string line = random_ranges_line(dice, pass);
    return checked_by_one_of(candidates(parse_problem(line), cuda().limits()), dice, line, seed,
                             runs);
  });
  EXPECT_GT(runs, 0);
}

TEST_F(HopperRanges, RandomMasksMeetTheRule) {
  expect_random_masks_right("fwd", 6000, sm90_candidates);
}

TEST_F(HopperRanges, GradientsOfRandomMasksMeetTheRule) {
  expect_random_masks_right("bwd", 7000, sm90_backward_candidates);
}

TEST_F(HopperRanges, RunsLeaveTheSameBits) {
  for (const char* line : {"fwd bf16 causal b1 hq8 hk2 s8192 d128 chunk(2048)",
                           "fwd fp16 causal b2 h4 s4096 d64 prefix(1000) scale(20)"}) {
    expect_same_bits(line, on_hopper(""), 200);
  }
}

}  // namespace
}  // namespace dfa
