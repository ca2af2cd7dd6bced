// Hopper's own backward with dropout, biases and ALiBi on a processor: its own source, held against
// fp64. Of warpgroups that have a gradient each.
#include "emulated/hopper_backward_variants.h"

namespace dfa {
namespace {

using namespace emulated;

TEST(EmulatedHopperBackwardVariants, Dropout) {
  expect_right_everywhere<config(kBf16, 64, kDropout)>();
  expect_right_everywhere<config(kFp16, 128, kDropout, 2, atomic)>();
}

TEST(EmulatedHopperBackwardVariants, DropoutOfWideHeads) {
  expect_right_at_edges<config(kBf16, 192, kDropout, 2, atomic_fused, true)>();
  expect_right_at_edges<config(kBf16, 256, kDropout, 2, atomic)>();
}

TEST(EmulatedHopperBackwardVariants, Biases) {
  expect_right_everywhere<config(kBf16, 64, kBias, 2, atomic)>();
  expect_right_at_edges<config(kFp16, 128, kBias)>();
}

// Of every type, one value for all of a dimension.
TEST(EmulatedHopperBackwardVariants, BiasesOfEveryShapeAndType) {
  constexpr auto kConfig = config(kBf16, 64, kBias);
  for (const char* bias : {"bias(b,h)", "bias(1,1,fp32)", "bias(b,1,1,k,fp16)", "bias(1,h,q,1)"}) {
    expect_right<kConfig>("bwd bf16 causal b2 hq2 hk1 sq70 sk131" + said<kConfig>(bias));
  }
}

// The gradient that heads or batches share, in an order that stays, by the portable kernel.
TEST(EmulatedHopperBackwardVariants, GradientsOfBiasesInOneOrder) {
  constexpr auto kConfig = config(kBf16, 64, kBias | kDropout, 2);
  for (const char* bias : {"bias(b,1)", "bias(1,1,fp32)", "bias(b,h)"}) {
    const std::string line =
        "bwd bf16 causal b2 hq2 hk1 sq70 sk131 deterministic" + said<kConfig>(bias);
    EXPECT_EQ(adds_bias_gradient(parse_problem(line), kConfig), std::string("bias(b,h)") == bias);
    expect_right<kConfig>(line);
  }
}

// Biases that hide, of a whole row too, and NaN where the mask hides.
TEST(EmulatedHopperBackwardVariants, BiasesThatHide) {
  constexpr auto kConfig = config(kBf16, 64, kSoftcap | kBias);
  const std::string line = "bwd bf16 causal b1 h2 sq70 sk130" + said<kConfig>("bias(1,h,fp32)");
  Tensors t(line, 5);
  for (std::int64_t at = 0; at < bias_sizes(t.p).elements(); ++at) {
    const std::int64_t i = at / 130 % 70, j = at % 130;
    float value;
    std::memcpy(&value, t.bias.data() + 4 * at, 4);
    if ((i + j) % 3 == 0 || i == 17) value = j % 2 == 0 ? -INFINITY : -3e38f;
    if (j > i + 60) value = NAN;
    std::memcpy(t.bias.data() + 4 * at, &value, 4);
  }
  expect_right<kConfig>(std::move(t), line);
}

// Heads of up to 64 columns, whose dq is one share: pairs make it in turn, of keys that stay, too.
TEST(EmulatedHopperBackwardVariants, PairsOfNarrowHeads) {
  expect_right_everywhere<config(kBf16, 64, kDropout, 2, atomic, true)>();
  expect_right_at_edges<config(kFp16, 64, kSoftcap | kAlibi, 2)>();
}

TEST(EmulatedHopperBackwardVariants, AllAtOnce) {
  constexpr int kAll = kSoftcap | kAlibi | kDropout | kBias;
  expect_right_at_edges<config(kBf16, 128, kAll, 2, atomic_fused, true)>();
  expect_right_at_edges<config(kBf16, 64, kAll, 2)>();
  expect_right_at_edges<config(kFp16, 96, kAll)>();
}

TEST(EmulatedHopperBackwardVariants, PackedSequences) {
  constexpr int kAll = kAlibi | kDropout | kBias;
  const std::string lens = "hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)";
  constexpr auto kPair = packed(config(kBf16, 64, kAll, 2, atomic));
  expect_right<kPair>("bwd bf16 causal " + lens + said<kPair>("bias(b,h)"));
  constexpr auto kBlock = packed(config(kBf16, 128, kAll));
  expect_right<kBlock>("bwd bf16 " + lens + said<kBlock>());
}

TEST(EmulatedHopperBackwardVariants, ChunksAndPrefixes) {
  constexpr auto kConfig = ranges(config(kBf16, 64, kDropout | kBias, 2, atomic));
  expect_right<kConfig>("bwd bf16 causal b1 hq2 hk1 s200 chunk(48)" + said<kConfig>());
  expect_right<kConfig>("bwd bf16 causal b1 h1 s150 prefix(70)" + said<kConfig>());
}

// By what the device has, a seed and an offset.
TEST(EmulatedHopperBackwardVariants, SeedsOnTheDevice) {
  constexpr auto kConfig = config(kBf16, 128, kDropout, 2, atomic);
  const std::uint64_t state[2] = {0x123456789abcdef0, 0x1000000004};
  const std::string line = "bwd bf16 causal b2 hq4 hk2 sq100 sk150" + said<kConfig>();
  Tensors t(line, 5);
  t.dropout = state;
  expect_right<kConfig>(std::move(t), line);
}

}  // namespace
}  // namespace dfa
