#pragma once

// Before anything of the kernels:
#include "emulated/hopper_forward.h"
// and then:
#include "kernels/forward/block_order.cuh"
#include "kernels/forward/sm90_blocks_forward.cuh"

// Hopper's own forward over lists of blocks, on a processor.
namespace dfa::emulated {

constexpr ForwardConfig listed(ForwardConfig config, int logits = 0) {
  config.blocks = true;
  return with_logits(config, logits);
}

// The two launches, on a grid of so many blocks.
template <ForwardConfig kConfig>
void run_listed(const Problem& p, ForwardArgs pointers, unsigned blocks = 3) {
  const Verdict legal = validate_config(kConfig, p, gpu_limits(90));
  ASSERT_TRUE(legal) << legal.reason;
  const auto launches = forward_launches(p, kConfig);
  Workspace workspace(forward_workspace_bytes(p, kConfig));
  pointers.workspace = workspace.data();
  const Sm90BlocksForwardArgs args =
      cuda::HopperForwardArgs(p, kConfig).blocks_with(pointers, static_cast<int>(blocks));
  launch(launches[0].grid, launches[0].threads, [&] { block_order(args); });
  launch(blocks, launches[1].threads, [&] { sm90_blocks_forward<kConfig>(args); });
}

}  // namespace dfa::emulated
