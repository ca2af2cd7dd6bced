// Hopper's forward in e4m3 over packed sequences on a processor, held against fp64. Rows that are
// of no sequence are NaN.
#include "emulated/gaps.h"
#include "emulated/hopper_e4m3.h"
// and then:
#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr ForwardConfig varlen(ForwardConfig config) {
  config.varlen = true;
  return config;
}

// `shift` is a fault: by how many rows the begins that pack_values is told are off.
template <ForwardConfig kConfig>
void run(Gaps& g, Timing asked, unsigned blocks, int shift = 0) {
  const auto launches = forward_launches(g.t.p, kConfig);
  ASSERT_EQ(launches.size(), 3u);
  Workspace workspace(forward_workspace_bytes(g.t.p, kConfig));
  ForwardArgs pointers = g.with(g.t.forward_args());
  pointers.workspace = workspace.data();
  const Sm90E4m3Args args =
      cuda::HopperForwardArgs(g.t.p, kConfig).e4m3_with(pointers, static_cast<int>(blocks));
  std::vector<std::int32_t> begins = g.t.cu_seqlens_k;
  for (std::int32_t& begin : begins) begin += shift;
  PackValuesArgs pack = pack_values_args(g.t.p, kConfig, pointers);
  pack.cu_seqlens_k = begins.data();
  launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
  launch(launches[1].grid, launches[1].threads, [&] { pack_values<kConfig>(pack); });
  const WithTiming with(asked);
  launch(blocks, launches[2].threads, [&] { sm90_e4m3_forward<kConfig>(args); });
}

template <ForwardConfig kConfig>
void expect_packed_right(const std::string& line) {
  Gaps crossed(line), late(line);
  run<kConfig>(crossed, kCrossed, 3);
  expect_met(check_forward(crossed.t.p, crossed.with(crossed.t.forward_args())), line);
  run<kConfig>(late, kLate, 1);
  EXPECT_TRUE(crossed.t.o == late.t.o) << line;
}

constexpr const char* kLines[] = {
    "fwd e4m3 causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0) d64",
    "fwd e4m3 hq2 hk1 lens(33,128,5) lens_k(64,3,200) d64",
    "fwd e4m3 window(40,9) hq2 hk2 lens(100,0,64,17) d64",
};

TEST(EmulatedHopperE4m3Varlen, MeetsTheRule) {
  for (const char* line : kLines) {
    expect_packed_right<varlen(hopper_e4m3(64, 128, 128, 2, true))>(line);
    expect_packed_right<varlen(hopper_e4m3(64, 64, 64, 2))>(line);
  }
}

TEST(EmulatedHopperE4m3VarlenFaults, ValuesOfOtherRows) {
  Gaps g(kLines[1]);
  run<varlen(hopper_e4m3(64, 64, 64, 2))>(g, kEager, 2, 1);
  EXPECT_FALSE(check_forward(g.t.p, g.with(g.t.forward_args())).ok);
}

}  // namespace
}  // namespace dfa
