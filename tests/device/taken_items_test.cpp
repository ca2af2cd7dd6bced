// Hopper's forward where blocks take their items from a counter, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class TakenItems : public HopperDevice {};

PlanOptions taken(const std::string& more = "") { return on_hopper(",dynamic=true" + more); }

TEST_F(TakenItems, EveryProblemOfTheFileMeetsTheRule) {
  EXPECT_GE(ran_of({"hopper_forward.txt"}, taken()), 25);
}

TEST_F(TakenItems, TheBitsAreThoseOfItemsDealtOut) {
  for (const char* line :
       {"fwd bf16 causal b4 h16 s1027 d128", "fwd bf16 b2 hq8 hk2 s700 d64",
        "fwd fp16 causal b2 h12 s900 d96", "fwd bf16 causal b2 h8 s1500 d256",
        "fwd bf16 b3 h20 s777 d64 scale(20)",  // most are done again, more than at once
        "fwd bf16 causal b2 h16 s2100 d128 scale(4)"}) {
    const Problem p = parse_problem(line);
    bench::Workload workload(p, "cuda", 5);
    workload.run(bench::prepare(p, on_hopper("")));
    const bench::HostOutputs dealt = workload.outputs();
    EXPECT_TRUE(workload.check(bench::prepare(p, taken()), {.max_flops = 1e9, .seed = 5}).ok);
    EXPECT_TRUE(same_bits(dealt, workload.outputs())) << line;
  }
}

TEST_F(TakenItems, ThousandRunsGiveTheSameBits) {
  expect_same_bits("fwd bf16 causal b4 h8 s1027 d128", taken(), 1000);
  expect_same_bits("fwd bf16 b4 h8 s512 d256", taken(",cluster=2"), 1000);
  expect_same_bits("fwd bf16 causal b2 hq8 hk2 s1000 d64 scale(20)", taken(), 1000);
}

TEST_F(TakenItems, EveryBudgetGivesTheSameBits) {
  for (const char* line :
       {"fwd bf16 causal b1 h6 s1000 d128 scale(2)", "fwd bf16 b2 h8 s600 d64"}) {
    for (const char* cluster : {"", ",cluster=2"}) {
      expect_same_bits_at_budgets(line, taken(cluster), 7);
    }
  }
}

// The counter is zeroed in the graph too: every replay takes all items again.
TEST_F(TakenItems, AGraphTakesAllItemsAtEveryReplay) {
  for (const char* line : {"fwd bf16 causal b2 h16 s1027 d128", "fwd bf16 b3 h20 s777 d64"}) {
    const Problem p = parse_problem(line);
    const bench::Prepared plans = bench::prepare(p, taken());
    bench::Workload workload(p, "cuda", 5);
    workload.run(bench::prepare(p, on_hopper("")));
    const bench::HostOutputs dealt = workload.outputs();
    workload.run(plans);
    const auto recording = workload.record(plans, 3);
    for (int replay = 0; replay < 4; ++replay) {
      // The check fills outputs with NaN before it runs: what is not written shows.
      EXPECT_TRUE(
          workload
              .check(plans, {.max_flops = 1e9, .seed = 5}, [&] { workload.replay(*recording, 3); })
              .ok)
          << line << ", replay " << replay;
      EXPECT_TRUE(same_bits(dealt, workload.outputs())) << line << ", replay " << replay;
    }
  }
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(TakenItems, SmallProblemsMeetTheRule) {
  EXPECT_TRUE(checked("fwd bf16 causal b1 hq4 hk2 s300 d128 scale(4)", 3, taken()));
  EXPECT_TRUE(checked("fwd bf16 b1 h3 s200 d64", 3, taken(",cluster=2,block_q=64,warps=4")));
}

}  // namespace
}  // namespace dfa
