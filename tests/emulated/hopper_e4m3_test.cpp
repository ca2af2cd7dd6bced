// Hopper's forward in e4m3 on a processor: its own source and that of the kernel which transposes
// v, held against fp64.
#include "emulated/warps.h"
#include "plan/pack_gqa.h"
// and then:
#include "emulated/deaf.h"
#include "emulated/hopper_e4m3.h"

namespace dfa {
namespace {

using namespace emulated;

// The columns of 32 scores that a thread has of a row, as they come out of a product, are the four
// bytes each of its two left operands of the next: thread t of four has 8 n + 2 t and the one
// behind, and is to have 4 t to 4 t + 3 and 16 on.
std::vector<int> keys_of_32() {
  std::vector<int> keys(32);
  for (int t = 0; t < 4; ++t) {
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < 2; ++i) keys[n / 2 * 16 + 4 * t + n % 2 * 2 + i] = 8 * n + 2 * t + i;
    }
  }
  return keys;
}

template <ForwardConfig kConfig>
void expect_transposed(const std::string& line) {
  constexpr int kKeys = kConfig.block_k, kColumns = kConfig.value_dim;
  Tensors t(line, 7);
  Workspace workspace = packed_values<kConfig>(t);
  const Problem& p = t.p;
  const std::vector<int> keys = keys_of_32();
  const std::int64_t tiles = (p.sk + kKeys - 1) / kKeys;
  const auto* packed = reinterpret_cast<const unsigned char*>(workspace.data());
  const auto* v = reinterpret_cast<const unsigned char*>(t.v.data());
  for (std::int64_t at = 0; at < p.b * p.hk * tiles * kColumns * kKeys; ++at) {
    const std::int64_t place = at % kKeys, column = at / kKeys % kColumns;
    const std::int64_t tile = at / kKeys / kColumns % tiles, head = at / kKeys / kColumns / tiles;
    const std::int64_t key = tile * kKeys + place / 32 * 32 + keys[place % 32];
    const bool there = key < p.sk && column < p.dv;
    const int wanted =
        there ? v[head / p.hk * p.v().batch + head % p.hk * p.v().head + key * p.v().row + column]
              : 0;
    ASSERT_EQ(packed[at], wanted) << line << ", head " << head << ", key " << key << ", column "
                                  << column;
  }
}

TEST(EmulatedHopperE4m3, ValuesAreTransposedWithKeysAsScoresLie) {
  expect_transposed<hopper_e4m3(64, 64, 64, 2)>("fwd e4m3 b1 h1 s1 d64");
  expect_transposed<hopper_e4m3(64, 128, 128, 2)>("fwd e4m3 b2 hq4 hk2 sq3 sk300 d48");
  expect_transposed<hopper_e4m3(96, 128, 96, 2)>("fwd e4m3 b2 h3 sq1 sk97 d80 layout(bshd)");
  expect_transposed<hopper_e4m3(256, 128, 64, 2)>("fwd e4m3 b1 h2 sq1 sk129 d256");
}

// The last key's row ends inside of 16 bytes, behind which there may be nothing.
TEST(EmulatedHopperE4m3, ValuesAreNotReadBehindTheirRows) {
  constexpr auto kConfig = hopper_e4m3(64, 64, 64, 2);
  const std::string line =
      "fwd e4m3 b1 h1 sq65 sk70 d40 strides_q(3200,3200,48) strides_k(3360,3360,48) "
      "strides_v(3360,3360,48)";
  Tensors t(line, 5), clean(line, 5);
  const Problem& p = t.p;
  for (std::int64_t key = 0; key + 1 < p.sk; ++key) {
    for (std::int64_t x = p.dv; x < p.v().row; ++x) {
      t.v[static_cast<std::size_t>(key * p.v().row + x)] = std::byte{0x7f};
    }
  }
  run_e4m3<kConfig>(t, kEager);
  run_e4m3<kConfig>(clean, kEager);
  EXPECT_TRUE(t.o == clean.o);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

TEST(EmulatedHopperE4m3, OneWarpgroup) {
  constexpr auto kConfig = hopper_e4m3(64, 64, 64, 2);
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h1 s1 d64");
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h1 sq70 sk1 d32");
  expect_e4m3_right<kConfig>("fwd e4m3 causal b1 hq2 hk1 sq65 sk300 d64");
}

TEST(EmulatedHopperE4m3, WarpgroupsThatTakeTurns) {
  constexpr auto kConfig = hopper_e4m3(64, 128, 128, 4, true);
  expect_e4m3_right<kConfig>("fwd e4m3 causal b2 hq4 hk2 sq200 sk330 d64");
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h2 sq300 sk129 d48 window(90,20) layout(bshd)");
  expect_e4m3_right<kConfig>("fwd e4m3 causal b1 h1 sq300 sk100 d64");  // rows that see no key
  constexpr auto kWide = hopper_e4m3(128, 128, 128, 4, true);
  expect_e4m3_right<kWide>("fwd e4m3 b1 hq2 hk1 sq150 sk700 d128");
  expect_e4m3_right<kWide>("fwd e4m3 causal b1 h1 s400 d112");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperE4m3, ThreeWarpgroupsAndTilesOf96Keys) {
  expect_e4m3_right<hopper_e4m3(64, 192, 96, 4)>("fwd e4m3 causal b1 hq2 hk1 s400 d64");
  expect_e4m3_right<hopper_e4m3(64, 192, 96, 4)>("fwd e4m3 b1 h1 sq193 sk97 d64");
  expect_e4m3_right<hopper_e4m3(128, 128, 96, 4, true)>(
      "fwd e4m3 b1 h2 sq210 sk200 d128 scale(-0.1)");
}
#endif

TEST(EmulatedHopperE4m3, TwoPanelsOfKeys) {
  expect_e4m3_right<hopper_e4m3(64, 128, 192, 2)>("fwd e4m3 causal b1 h2 sq130 sk500 d64");
}

#ifdef DFA_EVERY_CASE
// A step's product comes in parts, beside exponentials of some of the keys.
TEST(EmulatedHopperE4m3, WideHeadsInParts) {
  constexpr auto kWidest = hopper_e4m3(256, 128, 64, 2, true);
  static_assert(kWidest.value_parts() == 4);
  expect_e4m3_right<kWidest>("fwd e4m3 causal b1 hq2 hk1 sq150 sk200 d256");
  expect_e4m3_right<kWidest>("fwd e4m3 b1 h1 sq129 sk65 d208");
  expect_e4m3_right<hopper_e4m3(192, 128, 96, 2, true)>("fwd e4m3 b1 h2 sq140 sk300 d192");
  expect_e4m3_right<hopper_e4m3(96, 128, 128, 4, true)>(
      "fwd e4m3 b1 h1 sq140 sk300 d96 window(100,50)");
}
#endif

constexpr ForwardConfig with_values(ForwardConfig config, int dim) {
  config.value_dim = dim;
  return config;
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperE4m3, OtherDimsOfValues) {
  constexpr auto kWideValues = with_values(hopper_e4m3(64, 128, 64, 2), 256);
  expect_e4m3_right<kWideValues>("fwd e4m3 causal b1 h1 s140 d64 dv256");
  constexpr auto kWideHeads = with_values(hopper_e4m3(192, 128, 96, 2, true), 128);
  expect_e4m3_right<kWideHeads>("fwd e4m3 b1 h1 sq140 sk250 d192 dv128");
}
#endif

TEST(EmulatedHopperE4m3, PairsThatCopyTogether) {
  expect_e4m3_right<hopper_e4m3(128, 128, 96, 4, true, 2)>("fwd e4m3 b1 hq4 hk2 sq400 sk300 d128");
  expect_e4m3_right<hopper_e4m3(256, 128, 64, 2, true, 2)>("fwd e4m3 causal b1 h3 s300 d256");
}

// Maxima that come late: the last keys are walked first, so scores grow towards the first.
TEST(EmulatedHopperE4m3, ReferencesThatMove) {
  for (const char* line :
       {"fwd e4m3 b1 h1 sq130 sk600 d128 scale(2)", "fwd e4m3 causal b1 h1 s300 d128 scale(0.5)"}) {
    expect_e4m3_right<hopper_e4m3(128, 128, 128, 2, true)>(line);
  }
  expect_e4m3_right<hopper_e4m3(256, 128, 64, 2)>("fwd e4m3 b1 h1 sq130 sk600 d256 scale(1)");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperE4m3, HeadsOfAQueryAreNeighbouringRows) {
  expect_e4m3_right<packing(hopper_e4m3(64, 128, 128, 4), 4)>(
      "fwd e4m3 causal b2 hq8 hk2 sq37 sk330 d64");
  expect_e4m3_right<packing(hopper_e4m3(128, 128, 96, 2, true), 8)>(
      "fwd e4m3 b1 hq16 hk2 sq21 sk150 d128 layout(bshd)");
}
#endif

// A group's heads behind one another as rows of one head, where the mask hides nothing.
TEST(EmulatedHopperE4m3, PackedHeads) {
  constexpr auto kConfig = hopper_e4m3(64, 128, 128, 2);
  const std::string line = "fwd e4m3 b2 hq8 hk2 sq1 sk200 d64 layout(bshd)";
  Tensors packed(line, 5), apart(line, 5);
  packed.p = with_pack_gqa(apart.p);
  EXPECT_EQ(packed.p.hq, apart.p.hk);
  run_e4m3<kConfig>(packed, kCrossed);
  expect_met(check_forward(apart.p, packed.forward_args()), line);
}

// Of one value for all, of one sign or both, and of zero, where every key has the same weight.
TEST(EmulatedHopperE4m3, FactorsOfEveryKind) {
  constexpr auto kConfig = hopper_e4m3(64, 128, 64, 2);
  const std::string line = "fwd e4m3 causal b2 hq4 hk2 sq100 sk150 d64";
  for (const float q : {1.f, -0.5f, 0.f}) {
    Tensors t(line, 5);
    const float one = 0.25f;
    ForwardArgs args = t.forward_args();
    args.descales = {.q = {&q, 0, 0}, .k = {&one, 0, 0}, .v = {}};
    Workspace workspace = packed_values<kConfig>(t);
    run_packed<kConfig>(t, workspace, args.descales, kCrossed);
    expect_met(check_forward(t.p, args), line);
  }
}

struct WithSumBits {
  explicit WithSumBits(int bits) { e4m3_sum_bits = bits; }
  ~WithSumBits() { e4m3_sum_bits = 0; }
};

// With sums as short as a card's, of values of one sign, which a sum that went on
// from step to step would lose bits of: o meets the rule.
template <ForwardConfig kConfig>
void expect_right_with_short_sums(const std::string& line) {
  const WithSumBits with(14);
  Tensors t(line, 5);
  for (std::int64_t i = 0; i < t.count(t.v); ++i) t.set(t.v, i, std::fabs(t.at(t.v, i)));
  run_e4m3<kConfig>(t, kEager);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

TEST(EmulatedHopperE4m3, SumsOf14BitsMeetTheRule) {
  constexpr auto kConfig = hopper_e4m3(128, 64, 128, 4, true);
  expect_right_with_short_sums<kConfig>("fwd e4m3 b1 h1 sq64 sk500 d128");
  expect_right_with_short_sums<kConfig>("fwd e4m3 b1 h1 sq64 sk4096 d128 scale(0.02)");
  expect_right_with_short_sums<hopper_e4m3(256, 128, 64, 2, true)>(
      "fwd e4m3 b1 h1 sq64 sk1000 d256");
}

// The scores' sums are as short, as the rule of lse knows; shorter ones miss it.
TEST(EmulatedHopperE4m3, ScoresOf14BitsMeetTheRuleOfLseAndOfElevenDoNot) {
  for (const int bits : {14, 11}) {
    const WithSumBits with(bits);
    Tensors t("fwd e4m3 causal b1 h1 s500 d128", 5);
    run_e4m3<hopper_e4m3(128, 64, 128, 4, true)>(t, kEager);
    const TensorCheck lse = check_forward(t.p, t.forward_args()).tensors.at(1);
    EXPECT_EQ(lse.ok, bits == 14) << lse.max_error << " of " << lse.bound;
  }
}

// The comparison with fp64 sees what this kernel could get wrong.

constexpr auto kFaulty = hopper_e4m3(64, 128, 128, 2);
constexpr const char* kFaultyLine = "fwd e4m3 b2 hq4 hk2 sq130 sk300 d64";

TEST(EmulatedHopperE4m3Faults, AFactorThatIsLeftOut) {
  for (Descale Descales::*left_out : {&Descales::q, &Descales::k, &Descales::v}) {
    Tensors t(kFaultyLine, 5);
    Workspace workspace = packed_values<kFaulty>(t);
    Descales wrong = t.forward_args().descales;
    wrong.*left_out = {};
    run_packed<kFaulty>(t, workspace, wrong, kEager);
    EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
  }
}

TEST(EmulatedHopperE4m3Faults, AFactorOfAnotherHead) {
  for (Descale Descales::*other : {&Descales::q, &Descales::k, &Descales::v}) {
    Tensors t(kFaultyLine, 5);
    Workspace workspace = packed_values<kFaulty>(t);
    Descales wrong = t.forward_args().descales;
    (wrong.*other).head = 0;
    run_packed<kFaulty>(t, workspace, wrong, kEager);
    EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
  }
}

// Keys of v in the order in which they come.
TEST(EmulatedHopperE4m3Faults, KeysInAnotherOrder) {
  Tensors t(kFaultyLine, 5);
  Workspace workspace = packed_values<kFaulty>(t), wrong = packed_values<kFaulty>(t);
  const std::vector<int> keys = keys_of_32();
  for (std::int64_t at = 0; at < 4 * 3 * 64 * 128; ++at) {
    wrong.data()[at / 32 * 32 + keys[at % 32]] = workspace.data()[at];
  }
  run_packed<kFaulty>(t, wrong, t.forward_args().descales, kEager);
  EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
}

bool forward_is_wrong(Timing asked, Deaf to) {
  Tensors t("fwd e4m3 b1 h2 sq200 sk900 d64", 5);
  Workspace workspace = packed_values<kFaulty>(t);
  return is_wrong(asked, to, [&] {
    run_packed<kFaulty>(t, workspace, t.forward_args().descales, asked, 1);
    return check_forward(t.p, t.forward_args());
  });
}

TEST(EmulatedHopperE4m3Faults, WaitsAndFencesThatAreLeftOut) {
  for (const Timing asked : {kEager, kLate, kCrossed}) EXPECT_FALSE(forward_is_wrong(asked, {}));
  for (const Timing asked : {kLate, kCrossed}) {
    EXPECT_TRUE(forward_is_wrong(asked, {.phases = true}));
  }
  EXPECT_TRUE(forward_is_wrong(kCrossed, {.fences = true}));
  EXPECT_TRUE(forward_is_wrong(kLate, {.stores = true}));
}

// Behind the last key there must be zeros, as nothing times NaN is NaN.
TEST(EmulatedHopperE4m3Faults, WhatIsLeftBehindTheLastKey) {
  Tensors t(kFaultyLine, 5);
  Workspace workspace = packed_values<kFaulty>(t);
  workspace.data()[2 * 64 * 128 + 127] = 0x7f;  // the third tile of the first head has 44 keys
  run_packed<kFaulty>(t, workspace, t.forward_args().descales, kEager);
  EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
}

}  // namespace
}  // namespace dfa
