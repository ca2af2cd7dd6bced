#pragma once

#include "emulated/hopper.h"
#include "kernels/forward/sm90_fp32x3_forward.cuh"

namespace dfa::emulated {

// Hopper's forward in fp32 on a processor: its planes, then the kernel.
template <ForwardConfig kConfig>
void run_fp32x3_forward(Tensors& t) {
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  const auto launches = forward_launches(t.p, kConfig);
  const Fp32x3PlanesArgs split = fp32x3_planes_args(t.p, pointers);
  launch(launches[0].grid, launches[0].threads, [&] { fp32x3_planes<DType::bf16>(split); });
  const Sm90Fp32x3Args args = cuda::HopperFp32x3Args(t.p, kConfig).with(pointers, split);
  launch(launches[1].grid, launches[1].threads, [&] { sm90_fp32x3_forward<kConfig>(args); });
}

}  // namespace dfa::emulated
