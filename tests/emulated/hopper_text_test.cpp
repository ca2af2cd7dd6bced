// Hopper's own forward in fp16 and bf16 with masks and logits that are texts, on a processor: its
// own source, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/chosen_text.h"
#include "emulated/hopper_forward.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig with_text(ForwardConfig config, int logits = 0) {
  config.text = true;
  return with_logits(config, logits);
}
constexpr auto kTurns = with_text(hopper_forward(kBf16, 64, 128, 128, 3, 2, true));
constexpr auto kHalf = with_text(hopper_forward(kFp16, 64, 64, 128, 2, 1));

template <ForwardConfig kConfig>
void expect_text_right(int text, const std::string& rest) {
  chosen_text = text;
  expect_right<kConfig>(forward_line<kConfig>(rest) + " " + kTexts[text]);
}

// Those that are short enough for Hopper's kernels, of every layout.
constexpr int kShort[] = {0, 1, 2};

// Ragged edges, grouped heads, rows and whole tiles that see no key, scales of either sign.
template <ForwardConfig kConfig>
void expect_texts_right() {
  for (int text : kShort) {
    expect_text_right<kConfig>(text, "causal b2 hq4 hk2 sq150 sk200");
    expect_text_right<kConfig>(text, "b1 hq2 hk1 sq70 sk129 window(40,9) scale(-1)");
  }
  expect_text_right<kConfig>(4, "b2 hq4 hk2 sq150 sk300");
  expect_text_right<kConfig>(4, "causal b1 h1 sq200 sk90");
  expect_text_right<kConfig>(5, "causal b1 h2 sq150 sk200");
}

TEST(EmulatedHopperText, OfEveryTextMeetsTheRule) { expect_texts_right<kTurns>(); }

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperText, OfFp16MeetsTheRule) { expect_texts_right<kHalf>(); }

TEST(EmulatedHopperText, OfOtherTilesMeetsTheRule) {
  for (int text : {0, 1, 2, 4}) {
    expect_text_right<with_text(hopper_forward(kBf16, 128, 128, 64, 2, 2))>(
        text, "causal b1 hq2 hk1 sq200 sk300");
    expect_text_right<with_text(hopper_forward(kBf16, 256, 128, 64, 2, 1))>(
        text, "causal b1 hq2 hk1 sq200 sk100");
  }
}
#endif

TEST(EmulatedHopperText, BesideOtherLogits) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  constexpr auto kConfig = with_text(hopper_forward(kBf16, 64, 128, 128, 3, 2, true), kAll);
  for (int text : {0, 1, 2, 4}) {
    expect_text_right<kConfig>(text, "causal b2 hq4 hk2 sq70 sk200" + said_of(kAll));
  }
}

constexpr ForwardConfig kBiased = [] {
  ForwardConfig config = kTurns;
  config.bias = true;
  return config;
}();

constexpr ForwardConfig kBiasedInFp32 = [] {
  ForwardConfig config = kBiased;
  config.bias_fp32 = true;
  return config;
}();

TEST(EmulatedHopperText, BesideABias) {
  for (const char* bias : {" bias(b,h)", " bias(1,h,q,1)"}) {
    for (int text : {0, 1, 4}) {
      expect_text_right<kBiased>(text, "causal b2 hq2 hk1 sq150 sk200" + std::string(bias));
    }
  }
}

TEST(EmulatedHopperText, WhatItHidesStaysHiddenWhereTheBiasIsNan) {
  chosen_text = 4;  // which hides the first keys
  for (const char* sizes : {"b1 h1 sq70 sk130", "b1 h1 sq70 sk129"}) {
    Tensors t(forward_line<kBiasedInFp32>(sizes) + " bias(1,1,fp32) " + kTexts[4], 5);
    const float nan = std::nanf("");
    for (std::int64_t row = 0; row < t.p.sq; ++row) {
      std::memcpy(t.bias.data() + 4 * (row * t.p.sk + row % 40), &nan, 4);
    }
    run<kBiasedInFp32>(t, kCrossed);
    expect_met(check_forward(t.p, t.forward_args()), sizes);
  }
}

#ifdef DFA_EVERY_CASE
// Neighbouring rows are heads, of which a text is told each by its number; some rows are left.
TEST(EmulatedHopperText, HeadsAsRowsOfATile) {
  constexpr ForwardConfig kNoTurns = with_text(hopper_forward(kBf16, 64, 128, 128, 3, 2, false));
  for (int text : kShort) {
    expect_text_right<packing(kNoTurns, 8)>(text, "causal b2 hq16 hk2 sq17 sk200");
    expect_text_right<packing(kNoTurns, 16)>(text, "causal b1 hq16 hk1 sq17 sk200");
    expect_text_right<packing(kNoTurns, 3)>(text, "causal b2 hq6 hk2 sq37 sk330");
  }
}
#endif

// Each with numbers and lengths of its own.
TEST(EmulatedHopperText, OfPackedSequences) {
  for (int text : {0, 1, 2, 4, 5}) {
    chosen_text = text;
    expect_packed_right<packed(kTurns)>(forward_line<kTurns>(
        std::string("causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0) ") + kTexts[text]));
  }
}

// The number of a batch is counted from the first of the call's.
TEST(EmulatedHopperText, BatchesAreNumberedFromWhereACallSays) {
  chosen_text = 0;
  Tensors t(forward_line<kTurns>("b2 hq4 hk2 sq70 sk100") + " " + kTexts[0], 5);
  ForwardArgs pointers = t.forward_args();
  pointers.logits.dropout_batch = 3;
  const unsigned blocks = forward_launches(t.p, kTurns)[0].grid;
  const Sm90ForwardArgs args =
      cuda::HopperForwardArgs(t.p, kTurns).with(pointers, static_cast<int>(blocks));
  launch(blocks, kTurns.threads(), [&] { sm90_forward<kTurns>(args); });
  expect_met(check_forward(t.p, pointers), "from batch 3 on");
  EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
}

}  // namespace
}  // namespace dfa
