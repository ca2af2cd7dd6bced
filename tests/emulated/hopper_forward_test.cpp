// Hopper's forward in fp16 and bf16 on a processor: its own source, held against fp64.
#include "emulated/warps.h"
#include "plan/pack_gqa.h"
// and then:
#include "emulated/hopper_forward.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

// A grid whose blocks are kept busier by smaller sections walks those; the bits are the same.
TEST(EmulatedHopperForward, SectionsThatKeepTheGridBusier) {
  constexpr auto kConfig = hopper_forward(kBf16, 64, 64, 128, 2, 1);
  constexpr int kBlocks = 6;
  const std::string line = "fwd bf16 causal b1 h5 s260 d64";
  Tensors whole(line, 5), smaller(line, 5);
  const cuda::HopperForwardArgs all(smaller.p, kConfig);
  EXPECT_EQ(all.with(smaller.forward_args(), 1).tile_grid.section, 5);
  EXPECT_EQ(all.with(smaller.forward_args(), kBlocks).tile_grid.section, 4);
  EXPECT_EQ(all.with(smaller.forward_args(), 1).tile_grid.section, 5);
  run<kConfig>(whole, kEager, 1);
  expect_met(check_forward(whole.p, whole.forward_args()), line);
  run<kConfig>(smaller, kEager, kBlocks);
  EXPECT_TRUE(whole.o == smaller.o);
  EXPECT_EQ(0, std::memcmp(whole.lse.data(), smaller.lse.data(), 4 * whole.lse.size()));
}

TEST(EmulatedHopperForward, OneWarpgroup) {
  constexpr auto kConfig = hopper_forward(kBf16, 64, 64, 128, 2, 1);
  expect_right<kConfig>("fwd bf16 b1 h1 s1 d64");
  expect_right<kConfig>("fwd bf16 causal b1 hq2 hk1 sq65 sk300 d64");
}

TEST(EmulatedHopperForward, WarpgroupsThatTakeTurns) {
  constexpr auto kConfig = hopper_forward(kBf16, 64, 128, 128, 3, 2, true);
  expect_right<kConfig>("fwd bf16 causal b2 hq4 hk2 sq200 sk330 d64");
  expect_right<kConfig>("fwd bf16 b1 h2 sq300 sk129 d40 window(90,20) layout(bshd)");
  expect_right<kConfig>("fwd bf16 causal b1 h1 sq300 sk100 d64");  // rows that see no key
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperForward, ThreeAndFourWarpgroups) {
  expect_right<hopper_forward(kBf16, 128, 192, 80, 2, 2)>("fwd bf16 causal b1 hq2 hk1 s400 d128");
  expect_right<hopper_forward(kBf16, 128, 192, 80, 2, 2)>("fwd bf16 b1 h1 sq193 sk81 d128");
  expect_right<hopper_forward(kBf16, 96, 192, 64, 3, 2)>(
      "fwd bf16 b1 h2 sq210 sk200 d96 scale(-1)");
  expect_right<hopper_forward(kBf16, 64, 256, 64, 4, 2)>("fwd bf16 causal b1 h3 s513 d64");
}
#endif

TEST(EmulatedHopperForward, LanesOfAnyWarpMayBeLate) {
  constexpr auto kThree = hopper_forward(kBf16, 128, 192, 80, 2, 2);
  const std::string line = "fwd bf16 causal b1 h1 s400 d128";
  Tensors together(line, 5);
  run<kThree>(together, kEager);
  for (int warp = 0; warp < 16; ++warp) {
    Tensors lanes(line, 5);
    run<kThree>(lanes, late_lanes(warp));
    EXPECT_TRUE(lanes.o == together.o) << warp;
  }
}

// Query heads of a group as rows of one tile: right by the problem as it was asked, with the bits
// that each head has in a tile of its own.
TEST(EmulatedHopperForward, PackedHeads) {
  constexpr auto kConfig = hopper_forward(kBf16, 64, 128, 64, 2, 2);
  for (const char* line :
       {"fwd bf16 b2 hq8 hk2 sq1 sk200 d64 layout(bshd)", "fwd bf16 b1 hq6 hk2 sq50 sk130 d64",
        "fwd bf16 b1 hq3 hk1 sq20 sk99 d48"}) {
    Tensors packed(line, 5), apart(line, 5);
    packed.p = with_pack_gqa(apart.p);
    EXPECT_EQ(packed.p.hq, apart.p.hk) << line;
    run<kConfig>(packed, kCrossed);
    expect_met(check_forward(apart.p, packed.forward_args()), line);
    run<kConfig>(apart, kCrossed);
    EXPECT_TRUE(packed.o == apart.o) << line;
    EXPECT_EQ(0, std::memcmp(packed.lse.data(), apart.lse.data(), 4 * apart.lse.size())) << line;
  }
}

constexpr ForwardConfig split_kv_by(ForwardConfig config, int num_splits) {
  config.num_splits = num_splits;
  return config;
}

#ifdef DFA_EVERY_CASE
// The last work tiles in splits of their keys, joined: behind whole rounds and without any, where
// work tiles fill whole rounds, where a piece has no tile, where a row sees none of a piece or of
// any, where tiles of q are packed heads, where a work tile is done again, and one of more pieces
// than a warp has lanes.
TEST(EmulatedHopperForward, LastItemsInSharesOfTheirKeys) {
  constexpr auto k64 = split_kv_by(hopper_forward(kBf16, 64, 64, 64, 2, 1), 5);
  expect_right<k64>("fwd bf16 b2 hq4 hk2 sq1 sk1000 d64");
  expect_right<k64>("fwd bf16 b1 h3 sq300 sk400 d64");  // three whole rounds
  expect_right<k64>(
      "fwd bf16 b1 h7 sq70 sk130 d40 layout(bshd)");   // two, and four of 14 work tiles
  expect_right<k64>("fwd bf16 b1 h1 sq70 sk130 d64");  // a split has less than a tile
  expect_right<k64>("fwd bf16 causal b1 h2 sq130 sk300 d64");
  expect_right<k64>("fwd bf16 causal b1 h1 sq200 sk100 d64");  // rows that see no key
  expect_right<k64>("fwd bf16 b1 h2 sq100 sk700 d64 window(90,20)");
  expect_right<k64>("fwd bf16 b1 h2 sq1 sk900 d64 scale(20)");
  constexpr auto kTurns = split_kv_by(hopper_forward(kBf16, 128, 128, 128, 2, 2, true), 3);
  expect_right<kTurns>("fwd bf16 causal b1 h2 sq200 sk900 d128");
  constexpr auto kPacked = split_kv_by(packing(hopper_forward(kFp16, 64, 64, 128, 2, 1), 5), 33);
  expect_right<kPacked>("fwd fp16 causal b1 hq10 hk2 sq3 sk4300 d64");
  constexpr auto kMany = split_kv_by(hopper_forward(kBf16, 64, 64, 64, 2, 1), 70);
  expect_right<kMany>("fwd bf16 b1 h1 sq5 sk4700 d64");
  expect_right<kMany>("fwd bf16 causal b1 h1 sq70 sk4700 d64");
  constexpr auto kWidest = split_kv_by(hopper_forward(kBf16, 256, 128, 64, 2, 1), 3);
  expect_right<kWidest>("fwd bf16 b1 h1 sq70 sk300 d256");
  expect_right<kWidest>("fwd bf16 b1 h1 sq70 sk300 d256 dv200");
}
#endif

// By pairs, with a place of its own for the output of whole work tiles.
TEST(EmulatedHopperForward, LastItemsOfPairsInSharesOfTheirKeys) {
  constexpr auto kOwn = [] {
    ForwardConfig c = split_kv_by(hopper_forward(kBf16, 128, 128, 64, 2, 1, false, 2), 3);
    c.q_columns_in_regs = 64;
    return c;
  }();
  expect_right<kOwn>("fwd bf16 b1 h4 sq130 sk300 d128");
  expect_right<kOwn>("fwd bf16 b1 h5 sq200 sk150 d120 scale(20)");
}

#ifdef DFA_EVERY_CASE
// Heads of one query as neighbouring rows: under every mask, in every layout, where a tile's last
// query or a query's last key is cut off, however the output leaves, on any grid.
TEST(EmulatedHopperForward, HeadsOfAQueryAreNeighbouringRows) {
  constexpr auto kTurns = packing(hopper_forward(kBf16, 64, 128, 128, 3, 2, true), 4);
  expect_right<kTurns>("fwd bf16 causal b2 hq8 hk2 sq37 sk330 d64");
  expect_right<kTurns>("fwd bf16 b1 hq8 hk1 sq70 sk129 d40 window(90,20) layout(bshd)");
  expect_right<kTurns>("fwd bf16 causal b1 hq4 hk1 sq40 sk25 d64");  // rows that see no key
  constexpr auto kTwo = packing(hopper_forward(kFp16, 64, 64, 128, 2, 1), 2);
  expect_right<kTwo>("fwd fp16 causal b1 hq6 hk1 sq33 sk200 d64 layout(bshd)");
  constexpr auto kPairs = packing(hopper_forward(kBf16, 128, 128, 64, 2, 2, false, 2), 16);
  expect_right<kPairs>("fwd bf16 causal b1 hq32 hk2 sq21 sk150 d128 layout(bshd) scale(-1)");
  constexpr auto kWide = packing(hopper_forward(kBf16, 256, 128, 64, 2, 1), 8);
  expect_right<kWide>("fwd bf16 causal b1 hq16 hk2 sq17 sk90 d200");
}

// As many rows as the next power of two has, some of which hold heads of the next group, or
// nothing.
TEST(EmulatedHopperForward, GroupsThatAreNoPowerOfTwoLeaveRows) {
  constexpr auto kThree = packing(hopper_forward(kBf16, 64, 128, 128, 3, 2, true), 3);
  expect_right<kThree>("fwd bf16 causal b2 hq6 hk2 sq37 sk330 d64");
  expect_right<kThree>("fwd bf16 b1 hq6 hk1 sq70 sk129 d40 window(90,20) layout(bshd)");
  expect_right<kThree>("fwd bf16 causal b1 hq3 hk1 sq40 sk25 d64");             // see no key
  expect_right<kThree>("fwd bf16 causal b1 hq6 hk2 sq40 sk500 d64 scale(20)");  // done again
  constexpr auto kFive = packing(hopper_forward(kFp16, 64, 64, 128, 2, 1), 5);
  expect_right<kFive>("fwd fp16 causal b2 hq10 hk2 sq33 sk200 d64 layout(bshd)");
  constexpr auto kFiveByTwo = packing(hopper_forward(kFp16, 64, 128, 128, 3, 2), 5);
  expect_right<kFiveByTwo>("fwd fp16 causal b2 hq10 hk2 sq33 sk200 d64 layout(bshd)");
  expect_right<kFiveByTwo>("fwd fp16 b1 hq10 hk2 sq15 sk300 d64 scale(8) window(90,20)");
  constexpr auto kSeven = packing(hopper_forward(kBf16, 128, 128, 64, 2, 2), 7);
  expect_right<kSeven>("fwd bf16 causal b1 hq28 hk4 sq21 sk150 d128 layout(bshd) scale(-1)");
  constexpr auto kTwelve = packing(hopper_forward(kBf16, 256, 128, 64, 2, 1), 12);
  expect_right<kTwelve>("fwd bf16 causal b1 hq24 hk2 sq9 sk90 d200");
}
#endif

// Queries of the next group that lie in rows of this one reach none of its own.
TEST(EmulatedHopperForward, WhatLiesInRowsThatAreLeftIsNoHeadsBusiness) {
  constexpr auto kThree = packing(hopper_forward(kFp16, 64, 128, 64, 2, 2), 3);
  Tensors calm("fwd fp16 causal b1 hq6 hk2 sq30 sk99 d64", 5);
  Tensors nan("fwd fp16 causal b1 hq6 hk2 sq30 sk99 d64", 5);
  const std::size_t head = calm.o.size() / 6;
  std::fill(nan.q.begin() + 3 * head, nan.q.begin() + 4 * head, std::byte{0xff});
  run<kThree>(calm, kCrossed);
  run<kThree>(nan, kCrossed);
  EXPECT_TRUE(std::equal(calm.o.begin(), calm.o.begin() + 3 * head, nan.o.begin()));
  EXPECT_TRUE(std::equal(calm.o.begin() + 4 * head, calm.o.end(), nan.o.begin() + 4 * head));
  EXPECT_FALSE(calm.o == nan.o);
}

#ifdef DFA_EVERY_CASE
// Likewise in bf16, also where weights of such a query leave the range of fp32 and its own group's
// work tile is done again.
TEST(EmulatedHopperForward, RowsThatAreLeftAskForNothing) {
  constexpr auto kThree = packing(hopper_forward(kBf16, 64, 128, 64, 2, 2), 3);
  Tensors calm("fwd bf16 causal b1 hq6 hk2 sq30 sk99 d64", 5);
  Tensors wild("fwd bf16 causal b1 hq6 hk2 sq30 sk99 d64", 5);
  const std::int64_t head = calm.count(calm.q) / 6;
  for (std::int64_t i = 3 * head; i < 4 * head; ++i) wild.set(wild.q, i, 300 * wild.at(wild.q, i));
  run<kThree>(calm, kCrossed);
  run<kThree>(wild, kCrossed);
  const auto bytes = static_cast<std::ptrdiff_t>(calm.o.size() / 6);
  EXPECT_TRUE(std::equal(calm.o.begin(), calm.o.begin() + 3 * bytes, wild.o.begin()));
  EXPECT_TRUE(check_forward(wild.p, wild.forward_args()).ok);
}
#endif

TEST(EmulatedHopperForward, WideHeads) {
  expect_right<hopper_forward(kBf16, 256, 128, 64, 2, 1)>(
      "fwd bf16 causal b1 hq2 hk1 sq150 sk200 d256");
  expect_right<hopper_forward(kBf16, 256, 128, 64, 2, 1)>("fwd bf16 b1 h1 sq129 sk65 d200");
}

// Weights leave the range of fp32 where the maximum comes late: work tiles are done again.
TEST(EmulatedHopperForward, ItemsThatAreDoneAgain) {
  expect_right<hopper_forward(kBf16, 64, 128, 128, 3, 2, true)>(
      "fwd bf16 b1 h3 sq200 sk500 d64 scale(20)");
  expect_right<hopper_forward(kBf16, 64, 128, 128, 2, 1)>(
      "fwd bf16 causal b1 hq3 hk1 s400 d64 scale(20)");
  expect_right<hopper_forward(kBf16, 256, 128, 64, 2, 1)>("fwd bf16 b1 h2 s200 d256 scale(4)");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperForward, PairsThatCopyTogether) {
  expect_right<hopper_forward(kBf16, 128, 128, 128, 2, 2, false, 2)>(
      "fwd bf16 b1 hq4 hk2 sq400 sk300 d128");
  expect_right<hopper_forward(kBf16, 64, 64, 64, 2, 2, true, 2)>(
      "fwd bf16 causal b2 hq4 hk2 sq200 sk330 d64");
  expect_right<hopper_forward(kBf16, 256, 128, 64, 2, 1, false, 2)>(
      "fwd bf16 causal b1 h3 s300 d256");
  expect_right<hopper_forward(kFp16, 96, 64, 64, 3, 1, false, 2)>(
      "fwd fp16 b1 h3 sq300 sk190 d80 window(90,20)");
}
#endif

TEST(EmulatedHopperForward, PairsDoTheirItemsAgainTogether) {
  expect_right<hopper_forward(kBf16, 64, 64, 64, 2, 2, false, 2)>(
      "fwd bf16 b1 h3 sq200 sk500 d64 scale(20)");
  expect_right<hopper_forward(kBf16, 64, 128, 64, 2, 1, false, 2)>(
      "fwd bf16 causal b1 hq3 hk1 s400 d64 scale(20)");
}

TEST(EmulatedHopperForward, OutputByHalves) {
  constexpr auto kAlone = hopper_forward(kBf16, 256, 128, 64, 2, 1);
  constexpr auto kPair = hopper_forward(kBf16, 192, 64, 64, 2, 1, false, 2);
  static_assert(kAlone.own_output() && kPair.own_output());
  expect_right<kAlone>("fwd bf16 b1 h3 s200 d256");
  expect_right<kPair>("fwd bf16 causal b1 h2 s200 d192 scale(4)");
}

#ifdef DFA_EVERY_CASE
// Of more than one panel, with the rest of q in shared memory and without, in pairs, done again.
TEST(EmulatedHopperForward, ColumnsOfQInRegisters) {
  constexpr auto kHolding = [](int columns, ForwardConfig config) {
    config.q_columns_in_regs = columns;
    return config;
  };
  expect_right<kHolding(96, hopper_forward(kBf16, 256, 128, 64, 2, 1))>(
      "fwd bf16 causal b1 hq2 hk1 sq150 sk200 d256");
  expect_right<kHolding(96, hopper_forward(kBf16, 96, 192, 64, 3, 2))>(
      "fwd bf16 b1 h2 sq210 sk200 d96 scale(-1)");
  expect_right<kHolding(16, hopper_forward(kBf16, 128, 64, 64, 2, 1, false, 2))>(
      "fwd bf16 b1 h3 sq200 sk300 d128 scale(20)");
  expect_right<kHolding(64, hopper_forward(kFp16, 64, 128, 128, 3, 2, true))>(
      "fwd fp16 b1 h2 sq300 sk129 d40 window(90,20)");
}

// What d 192 and wide heads of fp16 take: q partly in registers, the output by halves, alone and in
// pairs; references that move.
TEST(EmulatedHopperForward, TilesOf64KeysForWideHeads) {
  constexpr auto kWide = [](int columns, ForwardConfig config) {
    config.q_columns_in_regs = columns;
    return config;
  };
  expect_right<kWide(96, hopper_forward(kBf16, 192, 128, 64, 3, 1))>(
      "fwd bf16 causal b1 hq2 hk1 sq150 sk270 d192");
  expect_right<kWide(96, hopper_forward(kBf16, 192, 128, 64, 3, 1, false, 2))>(
      "fwd bf16 b1 h2 sq300 sk200 d176 scale(4)");
  expect_right<kWide(64, hopper_forward(kFp16, 192, 128, 64, 3, 1))>(
      "fwd fp16 b1 h2 sq130 sk300 d192 scale(4)");
  expect_right<kWide(64, hopper_forward(kFp16, 256, 128, 64, 2, 1, false, 2))>(
      "fwd fp16 causal b1 h2 s300 d256 scale(4)");
}
#endif

TEST(EmulatedHopperForward, Fp16) {
  expect_right<hopper_forward(kFp16, 64, 128, 128, 3, 2, true)>(
      "fwd fp16 causal b1 hq4 hk2 sq200 sk330 d64");
  expect_right<hopper_forward(kFp16, 64, 128, 128, 3, 2, true)>(
      "fwd fp16 b1 h1 sq130 sk300 d64 scale(8)");  // references that move
  expect_right<hopper_forward(kFp16, 128, 128, 176, 2, 1, true)>(
      "fwd fp16 b1 h1 sq140 sk400 d128 window(100,50)");
}

}  // namespace
}  // namespace dfa
