// Hopper's backward of wide heads on a processor: its own source, held against fp64.
#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm90_wide_backward.cuh"

namespace dfa {
namespace {

using namespace emulated;

using enum DqAccumulation;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

// Products that read a tile before it was waited for.
constexpr Timing kLateCopies{.late_copies = true};

constexpr BackwardConfig config(DType element, int dim, int value_dim,
                                DqAccumulation dq = serialized) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = dim,
          .value_dim = value_dim,
          .block_q = 64,
          .block_k = 64,
          .warps = 8,
          .stages = 2,
          .ctas = 1,
          .dq = dq};
}

template <BackwardConfig kConfig>
void expect_right(const std::string& line) {
  expect_gradients<kConfig>(line, {kLateCopies, kLate, kCrossed}, [](const Sm90BackwardArgs& args) {
    sm90_wide_backward<kConfig>(args);
  });
}

constexpr BackwardConfig kWide = config(kBf16, 256, 256);

TEST(EmulatedHopperWideBackward, EdgesOfTiles) {
  expect_right<kWide>("bwd bf16 b1 h1 s1 d256");
  for (const int sq : {63, 64, 65}) {
    for (const int sk : {63, 64, 65, 129}) {
      const std::string lengths = " sq" + std::to_string(sq) + " sk" + std::to_string(sk);
      expect_right<kWide>("bwd bf16 b1 h1" + lengths + " d256");
      expect_right<kWide>("bwd bf16 causal b1 h1" + lengths + " d256");
    }
  }
}

TEST(EmulatedHopperWideBackward, Masks) {
  expect_right<kWide>("bwd bf16 causal b1 h1 s300 d256");
  expect_right<kWide>("bwd bf16 causal b1 h1 sq100 sk290 d256");
  expect_right<kWide>("bwd bf16 causal b1 h1 sq290 sk100 d256");  // rows without a key
  expect_right<kWide>("bwd bf16 b1 h1 s300 d256 window(33,65)");
  expect_right<kWide>("bwd bf16 b1 h1 sq200 sk300 d256 window(100,0)");
  expect_right<kWide>("bwd bf16 b1 h1 s200 d256 window(0,0)");
  expect_right<kWide>("bwd bf16 b1 h1 sq300 sk70 d256 window(9,9)");  // keys and rows without any
}

TEST(EmulatedHopperWideBackward, GroupsLayoutsAndScales) {
  expect_right<kWide>("bwd bf16 causal b2 hq3 hk1 s130 d256");
  expect_right<kWide>("bwd bf16 b1 hq4 hk2 sq70 sk140 d256 layout(bshd)");
  expect_right<kWide>("bwd bf16 causal b1 h11 s130 d256");  // more heads than at once
  expect_right<kWide>("bwd bf16 b1 h1 s130 d256 scale(-0.3)");
  expect_right<kWide>("bwd bf16 b1 h1 sq100 sk2 d256 scale(20)");
}

TEST(EmulatedHopperWideBackward, TurnsPassedOnByASecondThread) {
  static_assert(kWide.early_release());
  expect_right<kWide>("bwd bf16 causal b1 hq2 hk1 s300 d256");
  expect_right<kWide>("bwd bf16 b1 h2 sq1 sk300 d256");
  expect_right<config(kBf16, 192, 192)>("bwd bf16 b1 h1 sq515 sk200 d192 window(150,0)");
}

TEST(EmulatedHopperWideBackward, DimsBetween) {
  expect_right<config(kBf16, 192, 192)>("bwd bf16 causal b1 hq2 hk1 sq200 sk150 d192");
  expect_right<config(kBf16, 192, 192)>("bwd bf16 b1 h1 sq70 sk130 d136");
  expect_right<config(kBf16, 192, 192)>("bwd bf16 causal b1 h1 s330 d160");
  expect_right<kWide>("bwd bf16 causal b1 h1 s130 d200 dv224");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperWideBackward, DimsThatDiffer) {
  expect_right<config(kBf16, 192, 128)>("bwd bf16 causal b1 hq2 hk1 sq200 sk150 d192 dv128");
  expect_right<config(kBf16, 96, 192)>("bwd bf16 b1 h1 sq130 sk70 d96 dv192");
  expect_right<config(kBf16, 128, 256)>("bwd bf16 causal b1 h1 s130 d128 dv256");
  expect_right<config(kBf16, 256, 64)>("bwd bf16 causal b1 h1 s130 d256 dv64");
}

TEST(EmulatedHopperWideBackward, Fp16) {
  expect_right<config(kFp16, 256, 256)>("bwd fp16 causal b1 hq2 hk1 sq270 sk200 d256");
  expect_right<config(kFp16, 256, 256)>("bwd fp16 b1 h1 sq129 sk129 d256 window(50,30)");
  expect_right<config(kFp16, 192, 192)>("bwd fp16 b1 h1 sq65 sk190 d192");
}
#endif

TEST(EmulatedHopperWideBackward, DqAsItComes) {
  expect_right<config(kBf16, 256, 256, atomic)>("bwd bf16 causal b1 hq2 hk1 s200 d256");
  expect_right<config(kFp16, 128, 256, atomic)>("bwd fp16 b1 h1 sq130 sk200 d128 dv256");
}

// By pairs of blocks, which make dq of both, with columns of k and v in registers but where pairs
// of the widest heads stay.

constexpr BackwardConfig pair(DType element, int dim, int value_dim, DqAccumulation dq = atomic) {
  BackwardConfig with = config(element, dim, value_dim, dq);
  with.cluster = 2;
  return with;
}

template <BackwardConfig kPair>
void expect_pairs_right(const std::string& dims) {
  for (const int sk : {1, 64, 65, 128, 129, 200}) {  // also a block of no keys
    expect_right<kPair>("bwd bf16 b1 h1 sq130 sk" + std::to_string(sk) + dims);
    expect_right<kPair>("bwd bf16 causal b1 h1 sq130 sk" + std::to_string(sk) + dims);
  }
  for (const int sq : {1, 64, 65, 129, 193, 300}) {  // one tile to five
    expect_right<kPair>("bwd bf16 b1 h1 sq" + std::to_string(sq) + " sk200" + dims);
    expect_right<kPair>("bwd bf16 causal b1 h1 sq" + std::to_string(sq) + " sk130" + dims);
  }
  expect_right<kPair>("bwd bf16 causal b1 h1 sq290 sk100" + dims);  // rows without a key
  expect_right<kPair>("bwd bf16 causal b2 hq3 hk1 s130" + dims);
  expect_right<kPair>("bwd bf16 causal b1 h11 s130" + dims);  // more heads than at once
}

#ifdef DFA_EVERY_CASE
// Shares of dq in turn.
TEST(EmulatedHopperWideBackward, PairsMakeDqOfBoth) {
  constexpr BackwardConfig kPair = pair(kBf16, 192, 192);
  expect_pairs_right<kPair>(" d192");
  expect_right<kPair>("bwd bf16 b1 hq4 hk2 sq70 sk140 d160 dv136 layout(bshd) window(33,65)");
  expect_right<pair(kFp16, 192, 192)>("bwd fp16 causal b1 h1 sq200 sk330 d192");
  expect_right<pair(kBf16, 192, 128)>("bwd bf16 causal b1 hq2 hk1 sq200 sk150 d192 dv128");
}
#endif

// Pairs that stay take keys of one head after the other, on so many multiprocessors.
constexpr BackwardConfig persistent(BackwardConfig with) {
  with.persistent = true;
  return with;
}

template <BackwardConfig kConfig>
void expect_persistent_right(const std::string& line, int sms) {
  expect_gradients<kConfig>(
      line, {kEager, kLateCopies, kLate, kCrossed},
      [](const Sm90BackwardArgs& args) { sm90_wide_backward<kConfig>(args); }, sms);
}

TEST(EmulatedHopperWideBackward, PairsThatStay) {
  constexpr BackwardConfig k192 = persistent(pair(kBf16, 192, 192));
  constexpr BackwardConfig k256 = persistent(pair(kFp16, 256, 256));
  expect_persistent_right<k192>("bwd bf16 causal b1 hq4 hk2 sq200 sk700 d192", 2);
  expect_persistent_right<k192>("bwd bf16 b2 h3 sq130 sk300 d160 dv136 layout(bshd)", 4);
  // Keys that no query sees: under the mask, between work tiles that have some.
  expect_persistent_right<k192>("bwd bf16 b1 h3 sq100 sk900 d192 window(70,0)", 2);
  expect_persistent_right<k256>("bwd fp16 causal b1 h3 sq300 sk400 d256", 2);
  expect_persistent_right<k256>("bwd fp16 b2 hq2 hk1 sq65 sk520 d256", 4);
  expect_persistent_right<k256>("bwd fp16 b1 h2 sq64 sk100 d256", 4);
}

#ifdef DFA_EVERY_CASE
// The thread that copies may be phases ahead of the other lanes of its warp.
TEST(EmulatedHopperWideBackward, LanesOfTheCopyingWarpMayBeLate) {
  constexpr Timing kLanes{.late_warp = 0, .all_lanes_late = false};
  constexpr BackwardConfig kStays = persistent(pair(kBf16, 192, 192)),
                           kPair = pair(kFp16, 256, 256);
  expect_gradients<kStays>("bwd bf16 b1 h3 sq500 sk300 d192", {kLanes},
                           [](const Sm90BackwardArgs& args) { sm90_wide_backward<kStays>(args); });
  expect_gradients<kPair>("bwd fp16 causal b1 h2 s300 d256", {kLanes},
                          [](const Sm90BackwardArgs& args) { sm90_wide_backward<kPair>(args); });
}

// Rounded by the warps of pairs that stay, between work tiles, and by blocks behind them; the
// workspace holds NaN before.
TEST(EmulatedHopperWideBackward, SumsAreZeroedAndRoundedInTheSameGrid) {
  constexpr BackwardConfig k192 = persistent(pair(kBf16, 192, 192, atomic_fused));
  constexpr BackwardConfig k256 = persistent(pair(kFp16, 256, 256, atomic_fused));
  expect_persistent_right<k192>("bwd bf16 causal b9 hq8 hk4 sq70 sk300 d192 layout(bshd)", 4);
  expect_persistent_right<k192>("bwd bf16 b30 h5 sq130 sk70 d160 dv136",
                                8);  // by pairs, then blocks
  expect_persistent_right<k192>("bwd bf16 b1 h2 sq70 sk8200 d192 window(9,9)", 4);
  expect_persistent_right<k192>("bwd bf16 b1 h3 sq300 sk100 d192 window(70,0)",
                                2);  // rows of no key
  expect_persistent_right<k256>("bwd fp16 causal b70 h2 sq129 sk130 d256", 6);
  // 13 heads at the end where 11 alternate else.
  expect_persistent_right<k192>("bwd bf16 causal b13 h1 sq300 sk700 d192", 4);
  expect_persistent_right<k256>("bwd fp16 b1 h1 sq1 sk1 d256", 2);
  expect_persistent_right<persistent(pair(kBf16, 128, 256, atomic_fused))>(
      "bwd bf16 b3 h3 sq100 sk200 d128 dv256", 4);
}
#endif

// The warp that counts ends of work tiles, and the one that zeroes and says when sums are complete.
TEST(EmulatedHopperWideBackward, HelpersMayBeLate) {
  constexpr BackwardConfig k192 = persistent(pair(kBf16, 192, 192, atomic_fused));
  for (const Timing& timing : {Timing{.late_warp = 2}, Timing{.late_warp = 3},
                               Timing{.late_copies = true, .late_warp = 2}}) {
    const auto keys = [](const Sm90BackwardArgs& args) { sm90_wide_backward<k192>(args); };
    expect_gradients<k192>("bwd bf16 causal b3 h7 s1 d192", {timing}, keys);
    expect_gradients<k192>("bwd bf16 b1 h3 sq100 sk700 d192 window(70,0)", {timing}, keys);
    expect_gradients<k192>("bwd bf16 b3 h7 s129 d192", {timing}, keys);
  }
}

#ifdef DFA_EVERY_CASE
// Each block with turns of its own.
TEST(EmulatedHopperWideBackward, PairsTakeTurns) {
  expect_pairs_right<pair(kBf16, 192, 192, serialized)>(" d192 deterministic");
  expect_pairs_right<pair(kBf16, 256, 256, serialized)>(" d256 deterministic");
  expect_right<pair(kFp16, 128, 256, serialized)>("bwd fp16 b1 h1 sq190 sk330 d128 dv256");
  expect_right<pair(kFp16, 256, 64, serialized)>(
      "bwd fp16 b1 hq4 hk2 sq70 sk540 d200 dv40 layout(bshd) window(133,65)");
}
#endif

constexpr BackwardConfig by_tile(BackwardConfig with) {
  with.gqa_inner_loop = true;
  return with;
}

#ifdef DFA_EVERY_CASE
// A tile of queries of all query heads, then the next.
TEST(EmulatedHopperWideBackward, PairsInTurnWalkTilesOfAllQueryHeads) {
  constexpr BackwardConfig kPair = by_tile(pair(kBf16, 192, 192, serialized));
  expect_right<kPair>("bwd bf16 causal b1 hq6 hk2 sq200 sk300 d192");
  expect_right<kPair>("bwd bf16 b1 hq4 hk2 sq130 sk400 d160 dv136 window(90,20)");
  expect_right<by_tile(pair(kFp16, 192, 128, serialized))>(
      "bwd fp16 causal b2 hq4 hk1 sq300 sk200 d192 dv128");
}

// Half of its columns each, with one place for do.
TEST(EmulatedHopperWideBackward, PairsOfTheWidestHeadsHalveDq) {
  constexpr BackwardConfig kPair = pair(kBf16, 256, 256);
  expect_pairs_right<kPair>(" d256");
  expect_right<kPair>("bwd bf16 b1 hq4 hk2 sq70 sk140 d200 dv232 layout(bshd) window(33,65)");
  expect_right<pair(kFp16, 256, 256)>("bwd fp16 causal b1 h1 sq200 sk330 d256");
  expect_right<pair(kBf16, 256, 64)>("bwd bf16 causal b1 hq2 hk1 sq200 sk150 d256 dv64");
  expect_right<pair(kFp16, 128, 256)>("bwd fp16 b1 h1 sq190 sk130 d128 dv256");  // a share each
  expect_right<pair(kFp16, 128, 192)>("bwd fp16 b1 h1 sq190 sk130 d128 dv192");
  expect_right<pair(kFp16, 96, 256)>("bwd fp16 causal b1 h1 sq190 sk130 d96 dv256");
  expect_right<pair(kBf16, 192, 256)>("bwd bf16 causal b1 h1 sq190 sk130 d192 dv256");
}
#endif

}  // namespace
}  // namespace dfa
