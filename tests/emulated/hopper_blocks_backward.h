#pragma once

// Before anything of the kernels:
#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm90_blocks_backward.cuh"

// Hopper's own backward over lists of blocks, on a processor.
namespace dfa::emulated {

constexpr BackwardConfig listed(DType element, int head_dim, int value_dim) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = head_dim,
          .value_dim = value_dim,
          .block_q = head_dim > 64 ? 64 : 128,
          .block_k = 128,
          .warps = 8,
          .stages = 2,
          .ctas = 1,
          .dq = DqAccumulation::atomic,
          .blocks = true};
}

template <BackwardConfig kConfig>
void run_listed(Tensors& t) {
  expect_legal(kConfig, t.p);
  auto launches = backward_launches(t.p, kConfig);
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  BackwardArgs pointers = t.backward_args();
  pointers.workspace = workspace.data();
  const Sm90BlocksBackwardArgs args =
      cuda::HopperBackwardArgs(t.p, kConfig, 4).blocks_with(pointers);
  launch(launches[0].grid, launches[0].threads, [&] { delta<kConfig.element>(args.args); });
  run_sinks<kConfig>(launches, args.args);
  workspace.zero(launches[1].zeroed);
  launch(launches[1].grid, launches[1].threads, [&] { sm90_blocks_backward<kConfig>(args); });
  launch(launches[2].grid, launches[2].threads, [&] { sm90_dq<kConfig>(args.args); });
}

template <BackwardConfig kConfig>
void expect_right(const std::string& rest) {
  std::string line = std::string("bwd ") + name_of(kConfig.element) + " " + rest + " d" +
                     std::to_string(kConfig.head_dim);
  if (kConfig.value_dim != kConfig.head_dim) line += " dv" + std::to_string(kConfig.value_dim);
  const Tensors asked = with_forward(line);
  for (const Timing timing : {kCrossed, kLate}) {
    Tensors t = asked;
    const WithTiming with(timing);
    run_listed<kConfig>(t);
    expect_met(check_backward(t.p, t.backward_args()), line);
  }
}

}  // namespace dfa::emulated
