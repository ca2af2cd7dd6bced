// Hopper's own forward with added biases on a processor: its own source, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/hopper_forward.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr ForwardConfig biased(ForwardConfig config) {
  config.bias = true;
  return config;
}
constexpr auto kTurns = biased(hopper_forward(DType::bf16, 64, 128, 128, 3, 2, true));

// Pairs of keys and single ones, of every type, one value for all of a dimension; edges.
TEST(EmulatedHopperBias, EveryShapeAndType) {
  for (const char* bias : {"bias(b,h)", "bias(1,1,fp32)", "bias(b,1,1,k,fp16)", "bias(1,h,q,1)"}) {
    expect_right<kTurns>(std::string("fwd bf16 causal b2 hq2 hk1 sq150 sk200 d64 ") + bias);
    expect_right<kTurns>(std::string("fwd bf16 b1 h2 sq70 sk129 d64 scale(-1) ") + bias);
  }
}

TEST(EmulatedHopperBias, BesideOtherLogits) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  expect_right<with_logits(kTurns, kAll)>("fwd bf16 causal b1 hq2 hk1 sq70 sk300 d64 bias(1,h)" +
                                          said_of(kAll));
}

}  // namespace
}  // namespace dfa
