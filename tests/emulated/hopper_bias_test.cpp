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
constexpr ForwardConfig in_fp32(ForwardConfig config) {
  config.bias_fp32 = true;
  return biased(config);
}
constexpr auto kPlain = hopper_forward(DType::bf16, 64, 128, 128, 3, 2, true);
constexpr auto kTurns = biased(kPlain);

template <ForwardConfig kConfig>
void expect_right_with(const std::string& bias) {
  const std::string dim = " d" + std::to_string(kConfig.head_dim) + " ";
  expect_right<kConfig>("fwd bf16 causal b2 hq2 hk1 sq150 sk200" + dim + bias);  // eight at once
  expect_right<kConfig>("fwd bf16 b1 h2 sq70 sk130 scale(-1)" + dim + bias);     // two
  expect_right<kConfig>("fwd bf16 b1 h2 sq70 sk129" + dim + bias);               // single ones
}

// Keys that are copied, read in pairs and read alone, one value for all of a dimension; edges.
TEST(EmulatedHopperBias, EveryShapeAndType) {
  for (const char* bias : {"bias(b,h)", "bias(b,1,1,k,fp16)", "bias(1,h,q,1)"}) {
    expect_right_with<kTurns>(bias);
  }
  expect_right_with<in_fp32(kPlain)>("bias(1,1,fp32)");
}

// Copies that end as late as they may.
TEST(EmulatedHopperBias, LateCopies) {
  for (const char* line : {"fwd bf16 causal b1 hq2 hk1 sq150 sk400 d64 bias(1,h)",
                           "fwd bf16 b1 h1 sq70 sk330 d64 bias(1,h)"}) {
    Tensors t(line, 5);
    run<kTurns>(t, kLate);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBias, OtherTiles) {
  expect_right_with<biased(hopper_forward(DType::bf16, 64, 256, 64, 4, 2))>("bias(1,h)");
  expect_right_with<biased(hopper_forward(DType::bf16, 128, 192, 80, 2, 2))>("bias(1,h)");
  expect_right_with<biased(hopper_forward(DType::bf16, 128, 128, 112, 2, 1))>("bias(b,h)");
  expect_right_with<in_fp32(hopper_forward(DType::bf16, 128, 128, 64, 4, 2))>("bias(b,h,fp32)");
}
#endif

// What hides its key, in bf16 by a number.
TEST(EmulatedHopperBias, HiddenKeys) {
  Tensors t("fwd bf16 b1 hq2 hk1 sq70 sk104 d64 bias(1,h)", 5);
  auto* bias = reinterpret_cast<std::uint16_t*>(t.bias.data());
  for (std::size_t i = 0; i < t.bias.size() / 2; ++i) {
    if (i / 104 % 3 == 0) bias[i] = i % 2 == 0 ? 0xff80 : 0xff7f;  // rows that see no key
    if (i % 7 == 0) bias[i] = 0xff80;
    if (i % 11 == 0) bias[i] = 0xf14a;  // the first that hides
  }
  run<kTurns>(t, kCrossed);
  expect_met(check_forward(t.p, t.forward_args()), "hidden");
}

TEST(EmulatedHopperBias, BesideOtherLogits) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  expect_right<with_logits(kTurns, kAll)>("fwd bf16 causal b1 hq2 hk1 sq70 sk300 d64 bias(1,h)" +
                                          said_of(kAll));
}

}  // namespace
}  // namespace dfa
