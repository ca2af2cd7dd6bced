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

TEST_P(HopperLogitsOfEveryHeadDim, BackwardsCompileWithoutSpills) {
  using enum DqAccumulation;
  for (const DType type : {DType::bf16, DType::fp16}) {
    for (const int d : {96, 128, 192, 256}) {
      for (const char* logits : {"softcap(3)", "alibi", "softcap(3) alibi"}) {
        for (const DqAccumulation dq : {serialized, atomic}) {
          compile_backward(type, d, logits, 1, dq, false);
          compile_backward(type, d, logits, 2, dq, false);
        }
        compile_backward(type, d, logits, 2, atomic, true);
        compile_backward(type, d, logits, 2, atomic_fused, true);
      }
    }
  }
  EXPECT_EQ(compiled_, 2 * 4 * 3 * 6);
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
