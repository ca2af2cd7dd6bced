// Hopper's own forward with dropout on a processor: its own source, held against fp64, and its mask
// against the reference's and that of the portable kernels, pair by pair.
#include "emulated/portable.h"
// and then:
#include "emulated/hopper_forward.h"
#include "reference/head_dropout.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig dropping(ForwardConfig config) {
  config.dropout = true;
  return config;
}
constexpr ForwardConfig splitting(ForwardConfig config, int splits) {
  config.num_splits = splits;
  return config;
}

constexpr auto kTurns = dropping(hopper_forward(kBf16, 64, 128, 128, 3, 2, true));
constexpr auto kHalf = dropping(hopper_forward(kFp16, 64, 64, 96, 2, 1));
constexpr auto kPair = dropping(hopper_forward(kBf16, 128, 128, 64, 2, 2, false, 2));
constexpr auto kWide = dropping(hopper_forward(kBf16, 256, 128, 64, 2, 1));

TEST(EmulatedHopperDropout, EveryMask) {
  for (const char* rest : {"causal b2 hq4 hk2 sq200 sk330 d64 dropout(0.1,7)",
                           "causal b1 h1 sq200 sk90 d64 dropout(0.5,18446744073709551615)",
                           "b1 h2 sq130 sk129 d40 window(90,20) layout(bshd) dropout(0.3,1)",
                           "b1 h1 sq70 sk300 d64 scale(-1) dropout(0.9,3)"}) {
    expect_right<kTurns>(std::string("fwd bf16 ") + rest);
    expect_right<kHalf>(std::string("fwd fp16 ") + rest);
  }
}

// Weights that leave the range of fp32 are made again, from the same draws.
TEST(EmulatedHopperDropout, WorkTilesThatAreDoneAgain) {
  expect_right<kTurns>("fwd bf16 causal b1 h2 s200 scale(20) d64 dropout(0.2,5)");
}

TEST(EmulatedHopperDropout, PairsAndWideHeads) {
  expect_right<kPair>("fwd bf16 causal b1 hq2 hk1 s400 d128 dropout(0.2,5)");
  expect_right<kWide>("fwd bf16 causal b1 hq2 hk1 sq150 sk200 d256 dropout(0.25,9)");
}

TEST(EmulatedHopperDropout, PackedSequences) {
  expect_packed_right<packed(kTurns)>(
      "fwd bf16 causal hq4 hk2 d64 lens(70,1,0,130,65) lens_k(150,1,9,129,0) dropout(0.15,11)");
}

// Splits of the keys are joined as they are: the factor is in each.
TEST(EmulatedHopperDropout, SplitsOfTheKeys) {
  constexpr auto kSplit = splitting(dropping(hopper_forward(kBf16, 64, 64, 64, 2, 1)), 5);
  expect_right<kSplit>("fwd bf16 b1 h7 sq70 sk130 d40 layout(bshd) dropout(0.3,2)");
}

TEST(EmulatedHopperDropout, BesideLogits) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  expect_right<with_logits(kTurns, kAll)>("fwd bf16 causal b2 hq4 hk2 sq70 sk100 d64" +
                                          said_of(kAll) + " dropout(0.2,9)");
  expect_right<ranges(kTurns)>("fwd bf16 causal b1 h2 s200 d64 chunk(48) dropout(0.1,4)");
}

// What is not 0 in o where v is a row's unit vector.
template <ForwardConfig kConfig>
void expect_mask(const std::uint64_t* state) {
  Tensors t("fwd bf16 b2 hq2 hk1 sq300 sk64 d64 dropout(0.4,5)", 1);
  t.dropout = state;
  for (std::int64_t i = 0; i < t.count(t.q); ++i) t.set(t.q, i, 0);
  for (std::int64_t i = 0; i < t.count(t.v); ++i) t.set(t.v, i, i / 64 % 64 == i % 64 ? 1 : 0);
  run<kConfig>(t, kCrossed);
  Tensors portable = t;
  constexpr ForwardConfig kPortable{.target = Target::cuda_sm80,
                                    .element = kBf16,
                                    .head_dim = 64,
                                    .value_dim = 64,
                                    .block_q = 64,
                                    .block_k = 32,
                                    .warps = 4,
                                    .ctas = 1,
                                    .dropout = true};
  run_forward<kPortable>(portable);
  const Logits logits = t.forward_args().logits;
  for (std::int64_t at = 0; at < t.count(t.o); ++at) {
    const std::int64_t j = at % 64, i = at / 64 % 300, head = at / 19200;
    const HeadDropout<double> truth(t.p, logits, head / 2, head % 2);
    ASSERT_EQ(truth.of(i, j) != 0, t.at(t.o, at) != 0) << head << " " << i << " " << j;
    ASSERT_EQ(portable.at(portable.o, at) != 0, t.at(t.o, at) != 0);
  }
}

TEST(EmulatedHopperDropout, EveryTileDrawsTheMaskOfTheReferenceAndOfPortableKernels) {
  const std::uint64_t state[2] = {0x123456789abcdef0, 0x1000000004};
  for (const std::uint64_t* of : {static_cast<const std::uint64_t*>(nullptr), state}) {
    expect_mask<kTurns>(of);
    expect_mask<dropping(hopper_forward(kBf16, 64, 64, 96, 2, 1))>(of);
    expect_mask<dropping(hopper_forward(kBf16, 64, 256, 64, 4, 2))>(of);
  }
}

}  // namespace
}  // namespace dfa
