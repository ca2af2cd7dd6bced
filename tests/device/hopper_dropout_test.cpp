// Hopper's own forward with dropout, on a real device: named, so that nothing else runs in its
// place.
#include "device/device_case.h"

namespace dfa {
namespace {

class HopperDropout : public HopperDevice {};

const std::string kMore[] = {"",
                             ",block_q=128,block_k=64,warps=8,stages=2,q_stages=1,pingpong=false",
                             ",block_q=64,block_k=128,warps=4,stages=2,q_stages=2,pingpong=false"};

TEST_F(HopperDropout, EveryProblemMeetsTheRule) {
  for (const char* rest :
       {"causal b2 hq8 hk2 sq500 sk700", "b2 hq4 hk4 sq500 sk90",
        "b1 h2 sq130 sk1290 window(90,20)", "causal b1 hq4 hk2 s1000 chunk(300)",
        "causal b2 hq8 hk2 s600 softcap(5) alibi sink", "b1 h1 sq70 sk3000 scale(-1)",
        "causal b1 h2 s200 scale(20)", "b1 hq8 hk2 sq1 sk3000",
        "causal hq4 hk2 lens(70,1,0,1300,65) lens_k(150,1,9,1290,0)"}) {
    for (const char* type : {"fwd bf16 ", "fwd fp16 "}) {
      for (const int d : {64, 128, 192, 256}) {
        for (const char* dropout : {" dropout(0.1,7)", " dropout(0.9,18446744073709551615)"}) {
          const bool logits = std::string(rest).find("softcap") != std::string::npos;
          const bool packed = std::string(rest).find("lens") != std::string::npos ||
                              std::string(rest).find("chunk") != std::string::npos;
          const bool halves = std::string(type).find("fp16") != std::string::npos;
          // No registers for all of it.
          if ((logits && d > 128) || ((packed || halves) && d > 192)) continue;
          EXPECT_TRUE(checked(std::string(type) + rest + " d" + std::to_string(d) + dropout, 5,
                              on_hopper("")));
        }
      }
    }
  }
}

TEST_F(HopperDropout, EveryTileMeetsTheRule) {
  for (const std::string& more : kMore) {
    for (const char* d : {" d64", " d128"}) {
      EXPECT_TRUE(
          checked(std::string("fwd bf16 causal b2 hq8 hk2 sq500 sk700") + d + " dropout(0.3,9)", 3,
                  on_hopper(more)));
    }
  }
}

// A backward by portable kernels, which draws the mask again.
TEST_F(HopperDropout, GradientsByPortableKernelsMeetTheRule) {
  for (const char* rest : {"causal b2 hq8 hk2 sq500 sk700 d64", "b1 h4 s900 d128",
                           "causal hq4 hk2 lens(70,1,0,1300,65) lens_k(150,1,9,1290,0) d128"}) {
    const PlanOptions mixed{.backend = "cuda",
                            .algorithm = Algorithm::flash,
                            .config = "ForwardConfig{target=cuda_sm90}"};
    EXPECT_TRUE(checked(std::string("fwdbwd bf16 ") + rest + " dropout(0.2,7)", 6, mixed));
  }
}

TEST_F(HopperDropout, BitsAreTheSameInEveryRun) {
  for (const char* line : {"fwd bf16 causal b2 hq16 hk2 s1500 d64 dropout(0.1,3)",
                           "fwd bf16 causal b1 hq8 hk4 s1100 d128 dropout(0.1,3)"}) {
    expect_same_bits(line, on_hopper(""), 100);
  }
}

}  // namespace
}  // namespace dfa
