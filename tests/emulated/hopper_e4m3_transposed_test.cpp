// Hopper's forward in e4m3 that transposes v itself, on a processor: held against fp64, and against
// the bits of the one that takes v packed.
#include "emulated/deaf.h"
#include "emulated/gaps.h"
#include "emulated/hopper_e4m3.h"
// and then:
#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

template <ForwardConfig kConfig>
void expect_bits_of_packed(const std::string& line) {
  constexpr ForwardConfig kTransposing = transposing(kConfig);
  Tensors packed(line, 5), transposed(line, 5), lanes(line, 5);
  run_e4m3<kConfig>(packed, kEager);
  run_e4m3<kTransposing>(transposed, kEager);
  run_e4m3<kTransposing>(lanes, {.late_warp = 1, .all_lanes_late = false}, 2);
  EXPECT_EQ(forward_launches(packed.p, kTransposing).size(), 1u);
  EXPECT_EQ(forward_workspace_bytes(packed.p, kTransposing), 0u);
  EXPECT_TRUE(packed.o == transposed.o) << line;
  EXPECT_TRUE(packed.o == lanes.o) << line;
  EXPECT_EQ(0, std::memcmp(packed.lse.data(), transposed.lse.data(), 4 * packed.lse.size()))
      << line;
  expect_e4m3_right<kTransposing>(line);
}

TEST(EmulatedHopperE4m3Transposed, HasTheBitsOfPackedValues) {
  expect_bits_of_packed<hopper_e4m3(64, 64, 64, 2)>("fwd e4m3 b1 h1 s1 d64");
  expect_bits_of_packed<hopper_e4m3(64, 128, 128, 4)>(
      "fwd e4m3 causal b2 hq4 hk2 sq200 sk330 d64 layout(bshd)");
  expect_bits_of_packed<hopper_e4m3(64, 128, 128, 4)>("fwd e4m3 causal b1 h1 sq300 sk100 d64");
  expect_bits_of_packed<hopper_e4m3(128, 128, 128, 4)>("fwd e4m3 b1 hq2 hk1 sq150 sk1100 d128");
  expect_bits_of_packed<hopper_e4m3(128, 64, 128, 2, true)>("fwd e4m3 causal b1 h2 s400 d112");
}

TEST(EmulatedHopperE4m3Transposed, HasTheBitsOfPackedValuesInPartsAndPanels) {
  expect_bits_of_packed<hopper_e4m3(256, 128, 64, 2)>(
      "fwd e4m3 causal b1 hq2 hk1 sq150 sk300 d256");
  expect_bits_of_packed<hopper_e4m3(64, 192, 96, 4)>("fwd e4m3 causal b1 hq2 hk1 s400 d64");
  expect_bits_of_packed<hopper_e4m3(64, 128, 192, 2)>("fwd e4m3 b1 h2 sq130 sk500 d48");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperE4m3Transposed, HasTheBitsOfPackedValuesOfOtherDims) {
  expect_bits_of_packed<hopper_e4m3(96, 128, 128, 4)>(
      "fwd e4m3 b1 h1 sq140 sk300 d96 window(90,20)");
  expect_bits_of_packed<hopper_e4m3(192, 128, 64, 2)>("fwd e4m3 b1 h2 sq140 sk300 d192");
  expect_bits_of_packed<packing(hopper_e4m3(64, 128, 128, 4), 4)>(
      "fwd e4m3 causal b2 hq8 hk2 sq37 sk330 d64");
}
#endif

constexpr ForwardConfig with_blocks(ForwardConfig config) {
  config.descale_blocks = true;
  return config;
}

TEST(EmulatedHopperE4m3Transposed, HasTheBitsOfPackedValuesWithFactorsOfBlocks) {
  expect_bits_of_packed<with_blocks(hopper_e4m3(128, 128, 128, 4))>(
      "fwd e4m3 causal b1 hq2 hk1 s400 d128 descale_rows(128)");
}

constexpr ForwardConfig kVarlen = transposing(packed(hopper_e4m3(64, 128, 128, 2)));

void run_varlen(Gaps& g, Timing asked, unsigned blocks) {
  const auto launches = forward_launches(g.t.p, kVarlen);
  ASSERT_EQ(launches.size(), 2u);
  Workspace workspace(forward_workspace_bytes(g.t.p, kVarlen));
  ForwardArgs pointers = g.with(g.t.forward_args());
  pointers.workspace = workspace.data();
  const Sm90E4m3Args args =
      cuda::HopperForwardArgs(g.t.p, kVarlen).e4m3_with(pointers, static_cast<int>(blocks));
  launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
  const WithTiming with(asked);
  launch(blocks, launches[1].threads, [&] { sm90_e4m3_forward<kVarlen>(args); });
}

// Rows of no sequence, and so those behind the end of one, are NaN.
TEST(EmulatedHopperE4m3Transposed, PackedSequences) {
  for (const char* line : {"fwd e4m3 causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0) d64",
                           "fwd e4m3 hq2 hk1 lens(33,128,5) lens_k(64,3,200) d64"}) {
    Gaps crossed(line), late(line);
    run_varlen(crossed, kCrossed, 3);
    expect_met(check_forward(crossed.t.p, crossed.with(crossed.t.forward_args())), line);
    run_varlen(late, kLate, 1);
    EXPECT_TRUE(crossed.t.o == late.t.o) << line;
  }
}

// Behind the last column of a row there may be anything.
TEST(EmulatedHopperE4m3Transposed, ColumnsOfNoValueAreNotRead) {
  constexpr auto kConfig = transposing(hopper_e4m3(64, 64, 64, 2));
  const std::string line =
      "fwd e4m3 b1 h1 sq65 sk70 d40 strides_q(3200,3200,48) strides_k(3360,3360,48) "
      "strides_v(3360,3360,48)";
  Tensors t(line, 5);
  for (std::int64_t key = 0; key + 1 < t.p.sk; ++key) {
    for (std::int64_t x = t.p.dv; x < t.p.v().row; ++x) {
      t.v[static_cast<std::size_t>(key * t.p.v().row + x)] = std::byte{0x7f};
    }
  }
  run_e4m3<kConfig>(t, kEager);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

bool forward_is_wrong(Timing asked, Deaf to) {
  constexpr auto kConfig = transposing(hopper_e4m3(64, 128, 128, 2));
  Tensors t("fwd e4m3 b1 h2 sq200 sk900 d64", 5);
  return is_wrong(asked, to, [&] {
    run_e4m3<kConfig>(t, asked, 1);
    return check_forward(t.p, t.forward_args());
  });
}

TEST(EmulatedHopperE4m3TransposedFaults, WaitsAndFencesThatAreLeftOut) {
  for (const Timing asked : {kEager, kLate, kCrossed}) EXPECT_FALSE(forward_is_wrong(asked, {}));
  for (const Timing asked : {kLate, kCrossed}) {
    EXPECT_TRUE(forward_is_wrong(asked, {.phases = true}));
  }
  EXPECT_TRUE(forward_is_wrong(kCrossed, {.fences = true}));
}

}  // namespace
}  // namespace dfa
