#pragma once

#include "emulated/hopper.h"
// and then:
#include "kernels/forward/combine_splits.cuh"
#include "kernels/forward/sm90_forward.cuh"
#include "kernels/schedule/sequence_tiles.cuh"

// How tests run Hopper's forward in fp16 and bf16 on a processor.
namespace dfa::emulated {

// On a grid of so many thread blocks, or one for every tile of queries.
template <ForwardConfig kConfig>
void run(Tensors& t, Timing asked, unsigned blocks = 0) {
  expect_legal(kConfig, t.p);
  const WithTiming with(asked);
  const auto launches = forward_launches(t.p, kConfig);
  const KernelLaunch& launched = launches[0];
  if (blocks == 0) blocks = launched.grid;
  const cuda::HopperForwardArgs all(t.p, kConfig);
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  workspace.zero(launched.zeroed);
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  const Sm90ForwardArgs args = all.with(pointers, static_cast<int>(blocks));
  launch(
      blocks, launched.threads, [&] { sm90_forward<kConfig>(args); }, launched.cluster);
  if constexpr (kConfig.num_splits > 0) {
    launch(launches[1].grid, launches[1].threads, [&] { combine_splits<kConfig>(args); });
  }
}

// The first lane of a warp may be phases ahead of its others.
constexpr Timing late_lanes(int warp) { return {.late_warp = warp, .all_lanes_late = false}; }

// The same bits on any grid, whenever copies come and products are made, and where lanes are late
// of the warp that copies or of one with queries.
template <ForwardConfig kConfig>
void expect_right(const std::string& line) {
  Tensors crossed(line, 5), late(line, 5);
  run<kConfig>(crossed, kCrossed);
  expect_met(check_forward(crossed.p, crossed.forward_args()), line);
  run<kConfig>(late, kLate, 2);
  for (int warp : {0, 4}) {
    Tensors lanes(line, 5);
    run<kConfig>(lanes, late_lanes(warp), 2);
    EXPECT_TRUE(crossed.o == lanes.o) << line << ", warp " << warp;
  }
  EXPECT_TRUE(crossed.o == late.o) << line;
  EXPECT_EQ(0, std::memcmp(crossed.lse.data(), late.lse.data(), 4 * late.lse.size())) << line;
}

// The same of packed sequences on three blocks, once.
template <ForwardConfig kConfig>
void expect_packed_right(const std::string& line) {
  Tensors t(line, 5);
  expect_legal(kConfig, t.p);
  const auto launches = forward_launches(t.p, kConfig);
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  const Sm90ForwardArgs args = cuda::HopperForwardArgs(t.p, kConfig).with(pointers, 3);
  launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
  launch(3, launches[1].threads, [&] { sm90_forward<kConfig>(args); });
  expect_met(check_forward(t.p, t.forward_args()), line);
}

template <ForwardConfig kConfig>
std::string forward_line(const std::string& rest) {
  return std::string("fwd ") + name_of(kConfig.element) + " " + rest + " d" +
         std::to_string(kConfig.head_dim);
}

// run(tensors, blocks) leaves what is right, and the same bits on another grid and where copies and
// products come late.
template <typename Run>
void expect_right_and_same(const std::string& line, const Run& run) {
  Tensors crossed(line, 7), late(line, 7);
  {
    const WithTiming with(kCrossed);
    run(crossed, 3u);
  }
  expect_met(check_forward(crossed.p, crossed.forward_args()), line);
  const WithTiming with(kLate);
  run(late, 2u);
  EXPECT_TRUE(crossed.o == late.o) << line;
  EXPECT_EQ(0, std::memcmp(crossed.lse.data(), late.lse.data(), 4 * late.lse.size())) << line;
}

}  // namespace dfa::emulated
