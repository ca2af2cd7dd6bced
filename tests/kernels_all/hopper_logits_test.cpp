// Hopper's own kernels with softcap, ALiBi and sinks, of every head dim.
#include "kernels_full/hopper_logits.h"

namespace dfa::cuda {
namespace {

using HopperLogitsOfEveryHeadDim = HopperLogitsTest;

TEST_P(HopperLogitsOfEveryHeadDim, ForwardsCompileWithoutSpills) {
  for (const char* type : {"bf16", "fp16"}) {
    for (const int d : {64, 96, 128, 192, 256}) {
      for (const char* logits : kLogits) {
        for (const ForwardConfig& config :
             tiles(std::string("fwd ") + type + " b4 h16 s4096 d" + std::to_string(d), 3)) {
          compile_with(config, logits);
        }
      }
    }
  }
  EXPECT_GE(compiled_, 80);
}

TEST_P(HopperLogitsOfEveryHeadDim, ForwardsOfPackedHeadsCompileWithoutSpills) {
  for (const int d : {64, 128, 256}) {
    for (ForwardConfig config :
         tiles("fwd bf16 causal b1 hq8 hk1 sq8 sk16384 d" + std::to_string(d), 1)) {
      for (const int heads : {1, 3, 8, 16}) {
        config.pack_gqa = heads;
        compile_with(config, "sink");
        compile_with(config, "softcap(3) alibi sink");
      }
    }
  }
  EXPECT_GE(compiled_, 20);
}

DFA_ON_ARCHITECTURES(HopperLogitsOfEveryHeadDim);

}  // namespace
}  // namespace dfa::cuda
