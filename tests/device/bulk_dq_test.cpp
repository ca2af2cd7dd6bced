// Hopper's backward by pairs whose shares of dq the copy engine adds up, on a real device.
#include "device/device_case.h"

namespace dfa {
namespace {

class BulkDq : public HopperDevice {
 protected:
  static PlanOptions bulk(bool stays) {
    return {.backend = "cuda",
            .algorithm = Algorithm::flash,
            .config = std::string("BackwardConfig{target=cuda_sm90,dq=unordered,stages=2,"
                                  "early_turns=false,cluster=2,rounds_dq=false,"
                                  "zeroes_dq=false,bulk_dq=true,"
                                  "persistent=") +
                      (stays ? "true}" : "false}")};
  }
};

TEST_F(BulkDq, SmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  for (const bool stays : {false, true}) {
    EXPECT_TRUE(checked("bwd bf16 causal b2 hq4 hk2 s600 d128", 4, bulk(stays)));
    EXPECT_TRUE(checked("bwd bf16 causal b20 hq4 hk2 s700 d64", 5, bulk(stays)));
  }
}

TEST_F(BulkDq, ItsProblemFileAndTileEdgesMeetTheRule) {
  int ran = 0;
  std::uint64_t seed = 20;
  const auto run = [&](const std::string& line) {
    const Problem p = parse_problem(line);
    const auto takes = [](std::int64_t d) { return d <= 64 || (d > 96 && d <= 128); };
    if (!takes(p.d) || p.dv > p.d || p.deterministic) return;
    for (const bool stays : {false, true}) ran += checked(line, ++seed, bulk(stays));
  };
  for (const std::string& line : problem_lines("hopper_backward.txt")) run(line);
  for (const char* lengths : {"s1", "s64", "s65", "s127", "s129", "sq1 sk300", "sq300 sk1"}) {
    for (const char* dim : {" d64", " d128"}) {
      run(std::string("bwd bf16 causal b30 h7 ") + lengths + dim);
    }
  }
  // More works than pairs, some of keys that no query sees, and many keys.
  for (const char* line :
       {"bwd bf16 b4 h8 sq200 sk2100 d128 window(100,0)", "bwd fp16 b6 h9 s777 d64",
        "bwd bf16 b4 h8 sq200 sk2100 d64 window(100,0)", "bwd bf16 causal b3 h40 s515 d64",
        "bwd fp16 causal b1 h2 s4100 d64", "bwd bf16 causal b1 h2 s4100 d128"}) {
    run(line);
  }
  EXPECT_GE(ran, 60);
}

// A share that is read before it is there, or overwritten before it is read, would show.
TEST_F(BulkDq, ManyRunsOnOtherDataMeetTheRule) {
  for (std::uint64_t seed = 100; seed < 115; ++seed) {
    EXPECT_TRUE(checked("bwd bf16 causal b2 h9 s1000 d64", seed, bulk(true)));
    EXPECT_TRUE(checked("bwd bf16 causal b2 h5 s1000 d128", seed, bulk(false)));
  }
}

}  // namespace
}  // namespace dfa
