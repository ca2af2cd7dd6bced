#pragma once

#include "emulated/hopper.h"
// and then:
#include "kernels/forward/pack_values.cuh"
#include "kernels/forward/sm90_e4m3_forward.cuh"

// How tests run Hopper's forward in e4m3 on a processor.
namespace dfa::emulated {

constexpr ForwardConfig hopper_e4m3(int dim, int block_q, int block_k, int stages,
                                    bool pingpong = false, int cluster = 1) {
  return hopper_forward(DType::e4m3, dim, block_q, block_k, stages, 2, pingpong, cluster);
}

constexpr ForwardConfig transposing(ForwardConfig config) {
  config.transpose_values = true;
  return config;
}

// v transposed, in a workspace of NaN before; the workspace alone where the forward does it.
template <ForwardConfig kConfig>
Workspace packed_values(Tensors& t) {
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  if constexpr (kConfig.transpose_values) return workspace;
  const PackValuesArgs args = pack_values_args(t.p, kConfig, pointers);
  const KernelLaunch launched = forward_launches(t.p, kConfig)[0];
  launch(launched.grid, launched.threads, [&] { pack_values<kConfig>(args); });
  return workspace;
}

// The forward alone, of a workspace and factors that may be wrong; on a grid of so many blocks, or
// one for every tile of queries.
template <ForwardConfig kConfig>
void run_packed(Tensors& t, Workspace& workspace, const Descales& descales, Timing asked,
                unsigned blocks = 0) {
  const WithTiming with(asked);
  const KernelLaunch launched = forward_launches(t.p, kConfig).back();
  if (blocks == 0) blocks = launched.grid;
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  pointers.descales = descales;
  const cuda::HopperForwardArgs all(t.p, kConfig);
  const Sm90E4m3Args args = all.e4m3_with(pointers, static_cast<int>(blocks));
  launch(
      blocks, launched.threads, [&] { sm90_e4m3_forward<kConfig>(args); }, launched.cluster);
}

template <ForwardConfig kConfig>
void run_e4m3(Tensors& t, Timing asked, unsigned blocks = 0) {
  expect_legal(kConfig, t.p);
  Workspace workspace = packed_values<kConfig>(t);
  run_packed<kConfig>(t, workspace, t.forward_args().descales, asked, blocks);
}

// Right by the rule, with the same bits on any grid, whenever copies come and products are made,
// and where the lanes of a warp are late.
template <ForwardConfig kConfig>
void expect_e4m3_right(const std::string& line) {
  constexpr auto late_lanes = [](int warp) {
    return Timing{.late_warp = warp, .all_lanes_late = false};
  };
  Tensors crossed(line, 5), late(line, 5);
  run_e4m3<kConfig>(crossed, kCrossed);
  expect_met(check_forward(crossed.p, crossed.forward_args()), line);
  run_e4m3<kConfig>(late, kLate, 2);
  for (const int warp : {0, 4}) {
    Tensors lanes(line, 5);
    run_e4m3<kConfig>(lanes, late_lanes(warp), 2);
    EXPECT_TRUE(crossed.o == lanes.o) << line << ", warp " << warp;
  }
  EXPECT_TRUE(crossed.o == late.o) << line;
  EXPECT_EQ(0, std::memcmp(crossed.lse.data(), late.lse.data(), 4 * late.lse.size())) << line;
}

}  // namespace dfa::emulated
