// Hopper's forward with pairs of thread blocks that copy k and v together, on a real device.
#include "device/device_case.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

class Pairs : public HopperDevice {};

PlanOptions pairs(const std::string& more = "") { return on_hopper(",cluster=2" + more); }

const char* const kTiles[] = {"", ",block_q=128,block_k=128,warps=8,stages=2,q_stages=1",
                              ",block_q=64,block_k=64,warps=4,stages=2,q_stages=1",
                              ",block_q=128,block_k=64,warps=8,stages=2,q_stages=1"};

TEST_F(Pairs, TheirTilesMeetTheRule) {
  int ran = 0;
  for (const std::string& line : problem_lines("hopper_forward.txt")) {
    const Problem p = parse_problem(line);
    for (const char* tile : kTiles) {
      const PlanOptions options = pairs(tile);
      const Limits limits = cuda().limits();
      const ForwardConfig base = gpu_forward_base(options.config, p, limits);
      if (!validate_config(parse_config(options.config, base), p, limits)) continue;
      ran += checked(line, 5, options);
    }
  }
  EXPECT_GE(ran, 50);
}

TEST_F(Pairs, TileEdgesMeetTheRule) {
  for (const char* mask : {"", "causal "}) {
    for (const char* lengths : {"s1", "s127", "s128", "s129", "s255", "s256", "s257", "sq1 sk700",
                                "sq700 sk1", "sq300 sk100", "sq385 sk64", "s641"}) {
      for (const char* dim : {" d64", " d96", " d128", " d256"}) {
        const std::string line = std::string("fwd bf16 ") + mask + "b2 hq4 hk2 " + lengths + dim;
        EXPECT_TRUE(checked(line, 8, pairs())) << line;
      }
    }
  }
}

TEST_F(Pairs, ThousandRunsGiveTheSameBits) {
  for (const char* line :
       {"fwd bf16 b8 h16 s512 d128", "fwd bf16 causal b4 h8 s1027 d128", "fwd bf16 b4 h8 s512 d256",
        "fwd bf16 causal b4 h8 s512 d256", "fwd bf16 causal b2 hq8 hk2 s1000 d64",
        "fwd fp16 b1 h4 sq333 sk777 d128"}) {
    expect_same_bits(line, pairs(), 1000);
  }
  expect_same_bits("fwd bf16 causal b16 h8 s512 d256", on_hopper(",cluster=1"), 1000);
}

// Of a budget of one multiprocessor they take two.
TEST_F(Pairs, EveryBudgetGivesTheSameBitsAlsoWhereItemsAreDoneAgain) {
  for (const char* line :
       {"fwd bf16 b2 h8 s600 d128", "fwd bf16 causal b1 h6 s1000 d128 scale(2)",
        "fwd bf16 b1 h5 s777 d64 scale(20)", "fwd bf16 causal b2 h3 s777 d256 scale(4)"}) {
    expect_same_bits_at_budgets(line, pairs(), 5);
  }
}

// Who copies what changes no bit.
TEST_F(Pairs, TheyGiveTheBitsOfTheSameTileAlone) {
  const auto expect_same = [](const char* line, const char* tile, const char* more) {
    EXPECT_TRUE(same_bits(right_outputs(line, on_hopper(tile)),
                          right_outputs(line, on_hopper(std::string(tile) + more))))
        << line << " " << tile << more;
  };
  constexpr const char* kWide = ",block_q=128,block_k=64,warps=8,stages=2,q_stages=1";
  for (const char* line : {"fwd bf16 b2 hq6 hk3 s700 d128", "fwd bf16 causal b2 h5 s515 d128",
                           "fwd bf16 causal b1 h70 sq300 sk515 d96", "fwd fp16 b3 h50 s300 d64"}) {
    expect_same(line, "", ",cluster=2");
  }
  for (const char* line : {"fwd bf16 causal b2 h70 s300 d256", "fwd bf16 b2 hq8 hk2 s333 d200",
                           "fwd fp16 causal b1 h3 sq300 sk200 d192 layout(bshd)"}) {
    expect_same(line, kWide, ",cluster=2");
  }
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(Pairs, SmallProblemsMeetTheRule) {
  for (const char* line : {"fwd bf16 b1 h2 s300 d64", "fwd bf16 causal b1 hq4 hk2 s129 d128",
                           "fwd bf16 causal b1 h1 sq200 sk33 d64", "fwd bf16 b1 h1 s130 d256",
                           "fwd bf16 b1 h2 s200 d64 scale(20)", "fwd bf16 b1 h2 s300 d256"}) {
    EXPECT_TRUE(checked(line, 3, pairs())) << line;
  }
}

}  // namespace
}  // namespace dfa
