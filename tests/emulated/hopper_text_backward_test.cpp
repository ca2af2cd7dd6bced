// Hopper's own backward with masks and logits that are texts, on a processor: its own source, held
// against fp64.
#include "emulated/hopper_backward_variants.h"
// and then:
#include "emulated/chosen_text.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr BackwardConfig with_text(BackwardConfig config) {
  config.text = true;
  return config;
}

// Whose warpgroups have both gradients of their keys.
constexpr BackwardConfig narrow(DType element, int dim, int cluster, DqAccumulation dq,
                                bool persistent = false, bool masked = false) {
  BackwardConfig with = with_text(config(element, dim, 0, cluster, dq, persistent));
  with.block_q = dim > 64 ? 64 : 128;
  with.block_k = 128;
  with.masked = masked;
  return with;
}

template <BackwardConfig kConfig>
void expect_text_right(int text, const std::string& rest) {
  chosen_text = text;
  expect_right<kConfig>(std::string("bwd ") + name_of(kConfig.element) + " " + rest + " d" +
                        std::to_string(kConfig.head_dim) + " " + kTexts[text]);
}

// Edges of tiles, rows and keys that see nothing, heads that share keys, either sign.
template <BackwardConfig kConfig>
void expect_texts_right() {
  for (int text : {0, 1, 2}) {
    expect_text_right<kConfig>(text, "causal b2 hq4 hk2 sq100 sk150");
    expect_text_right<kConfig>(text, "b1 hq2 hk1 sq130 sk129 window(40,9) scale(-1)");
  }
  expect_text_right<kConfig>(4, "b1 hq2 hk2 sq100 sk200");
  expect_text_right<kConfig>(5, "causal b1 h1 sq100 sk165");
}

// Of warpgroups that own a gradient each.
TEST(EmulatedHopperTextBackward, OfAGradientEachMeetsTheRule) {
  expect_texts_right<with_text(config(kBf16, 128, 0))>();
  expect_texts_right<with_text(config(kFp16, 64, 0, 1, atomic))>();
}

TEST(EmulatedHopperTextBackward, OfBothGradientsInPairsMeetsTheRule) {
  expect_texts_right<narrow(kBf16, 64, 2, atomic_fused, true)>();
  expect_texts_right<narrow(kFp16, 128, 2, atomic, true, true)>();
}

// Shares of dq are added a step later, up to 192 columns.
TEST(EmulatedHopperTextBackward, OfAGradientEachInPairsMeetsTheRule) {
  expect_texts_right<with_text(config(kFp16, 192, 0, 2, atomic))>();
}

TEST(EmulatedHopperTextBackward, OfBothGradientsInSingleBlocksMeetsTheRule) {
  expect_texts_right<narrow(kFp16, 64, 1, serialized)>();
  expect_texts_right<narrow(kBf16, 128, 1, serialized)>();
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperTextBackward, OfBothGradientsInOtherGridsMeetsTheRule) {
  expect_texts_right<narrow(kBf16, 64, 2, serialized)>();
  expect_texts_right<narrow(kBf16, 96, 2, serialized_fused, true)>();
  expect_texts_right<narrow(kBf16, 128, 2, serialized, false, true)>();
  expect_texts_right<narrow(kBf16, 128, 2, atomic_fused, true, true)>();
}

TEST(EmulatedHopperTextBackward, OfWideHeadsMeetsTheRule) {
  expect_texts_right<with_text(config(kBf16, 256, 0, 1, atomic))>();
  expect_texts_right<with_text(config(kBf16, 256, 0, 2, serialized))>();
  expect_texts_right<with_text(config(kFp16, 256, 0, 2, atomic))>();
  expect_texts_right<with_text(config(kBf16, 192, 0, 2, atomic_fused, true))>();
}
#endif

// Each with numbers and lengths of its own.
TEST(EmulatedHopperTextBackward, OfPackedSequences) {
  for (int text : {0, 1, 2, 4, 5}) {
    expect_text_right<packed(with_text(config(kBf16, 64, 0, 1, atomic)))>(
        text, "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)");
    expect_text_right<packed(narrow(kBf16, 128, 2, atomic, false, true))>(
        text, "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)");
#ifdef DFA_EVERY_CASE
    expect_text_right<packed(with_text(config(kBf16, 192, 0, 2, atomic)))>(
        text, "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)");
#endif
  }
}

}  // namespace
}  // namespace dfa
