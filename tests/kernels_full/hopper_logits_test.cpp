// Hopper's own kernels with softcap, ALiBi and sinks: compiled without a spill.
#include "kernels_full/hopper_logits.h"

namespace dfa::cuda {
namespace {

using HopperLogits = HopperLogitsTest;

TEST_P(HopperLogits, ForwardsCompileWithoutSpills) {
  for (const int d : cases({128}, {64, 256})) {
    for (const char* logits : kLogits) {
      for (const ForwardConfig& config : tiles("fwd bf16 b4 h16 s4096 d" + std::to_string(d), 2)) {
        compile_with(config, logits);
      }
    }
  }
  EXPECT_GE(compiled_, kEveryKernel ? 18 : 6);
}

TEST_P(HopperLogits, BackwardsCompileWithoutSpills) {
  for (const int d : {128, 256}) {
    for (const char* logits : {"softcap(3)", "alibi"}) {
      if (!kEveryKernel && (d == 128) != (*logits == 's')) continue;
      compile_backward(DType::bf16, d, logits, 1, DqAccumulation::serialized, false);
      compile_backward(DType::bf16, d, logits, 2, DqAccumulation::atomic, false);
      compile_backward(DType::bf16, d, logits, 2, DqAccumulation::atomic_fused, true);
    }
  }
  EXPECT_EQ(compiled_, kEveryKernel ? 12 : 6);
}

// Keys in shares, and heads as rows of a tile.
TEST_P(HopperLogits, ForwardsOfFewQueriesCompileWithoutSpills) {
  for (ForwardConfig config : tiles("fwd bf16 causal b1 hq8 hk1 sq8 sk16384 d128", 1)) {
    config.pack_gqa = 3;
    compile_with(config, "softcap(3) alibi sink");
    config.pack_gqa = 8;
    compile_with(config, "sink");
  }
  EXPECT_EQ(compiled_, 2);
}

DFA_ON_ARCHITECTURES(HopperLogits);

}  // namespace
}  // namespace dfa::cuda
