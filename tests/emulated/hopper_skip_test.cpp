// Tiles whose weights round to nothing are left out: how many, and what it changes.
#include "emulated/hopper_skip.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

// Of a tile's bound, 9 / 2^25 of the largest element of v, a reference that stays or follows; of
// 8 tiles. Beside it two roundings of o that may fall to either side: its unit, at up to 1.
constexpr double kBound = 8 * 9 * 0x1p-25, kUnitBf16 = 0x1p-7, kUnitFp16 = 0x1p-10;

TEST(EmulatedHopperSkip, NormalLogitsCountEverywhere) {
  const Skipped bf16 = skip<kBf16>(normal("fwd bf16 causal b1 h2 s512 d64"));
  EXPECT_EQ(bf16.part, 0);
  EXPECT_TRUE(bf16.report.ok) << bf16.report.summary();
  EXPECT_EQ(skip<kFp16>(normal("fwd fp16 b1 h2 s300 d64 scale(4)")).part, 0);
}

TEST(EmulatedHopperSkip, InFp16TheBitsAreThoseOfAKernelThatSkipsNone) {
  for (const Tensors& t :
       {packed_texts("fwd fp16 causal b1 h2 s512 d64"), packed_texts("fwd fp16 b1 h2 s512 d64"),
        distance_bias("fwd fp16 causal b1 h2 s512 d64", .25f)}) {
    const Skipped s = skip<kFp16>(t);
    EXPECT_GT(s.part, .4);
    EXPECT_TRUE(s.harmless);
    EXPECT_LE(s.furthest, kUnitFp16);
    EXPECT_TRUE(s.report.ok) << s.report.summary();
  }
}

TEST(EmulatedHopperSkip, InBf16TheChangeIsBounded) {
  for (const Tensors& t :
       {packed_texts("fwd bf16 causal b1 h2 s512 d64"), packed_texts("fwd bf16 b1 h2 s512 d64"),
        distance_bias("fwd bf16 causal b1 h2 s512 d64", .25f)}) {
    const Skipped s = skip<kBf16>(t);
    EXPECT_GT(s.part, .4);
    EXPECT_LE(s.furthest, kBound + kUnitBf16);
    EXPECT_TRUE(s.report.ok) << s.report.summary();
  }
}

// Items that are done again, rows that see no key, one stage of q and turns: all wait as before.
template <ForwardConfig kConfig>
void expect_right(const std::string& line) {
  for (const Timing asked : {kLate, kCrossed, Timing{.late_warp = 4, .all_lanes_late = false}}) {
    const WithTiming with(asked);
    Tensors t(line, 5);
    run_counting<kConfig>(t);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
}

constexpr ForwardConfig with_skip(ForwardConfig config) {
  config.skip = true;
  return config;
}

TEST(EmulatedHopperSkip, EveryWayThroughTheKernelMeetsTheRule) {
  constexpr auto kTurns = with_skip(hopper_forward(kBf16, 64, 128, 128, 3, 2, true));
  expect_right<kTurns>("fwd bf16 b1 h2 sq200 sk500 d64 scale(20)");
  expect_right<kTurns>("fwd bf16 causal b1 h2 sq300 sk100 d64");
  expect_right<with_skip(hopper_forward(kFp16, 256, 128, 64, 2, 1))>(
      "fwd fp16 causal b1 hq2 hk1 sq150 sk400 d256 scale(2)");
}

}  // namespace
}  // namespace dfa
