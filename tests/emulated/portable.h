#pragma once

#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm80_backward.cuh"
#include "kernels/backward/sm80_bias_gradient.cuh"
#include "kernels/backward/sm80_sliced_keys.cuh"
#include "kernels/backward/sm80_sliced_queries.cuh"
#include "kernels/forward/sm80_forward.cuh"
#include "kernels/forward/sm80_sliced_forward.cuh"
#include "kernels/schedule/sequence_tiles.cuh"

// How tests run the portable kernels on a processor.
namespace dfa::emulated {

// Small tiles, of which short sequences cross many.
constexpr ForwardConfig portable_forward(DType element, int dim, bool varlen = false) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = 64,
          .block_k = 32,
          .warps = 4,
          .varlen = varlen};
}
constexpr BackwardConfig portable_backward(DType element, int dim, bool varlen = false) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = 32,
          .block_k = 64,
          .warps = 4,
          .dq_block_q = 64,
          .dq_block_k = 32,
          .varlen = varlen};
}

// The launches of a pass, in order, by the names that backends log.
template <typename Args, typename Run>
void run_all(const std::vector<KernelLaunch>& launches, const Args& args, const Run& run) {
  for (const KernelLaunch& one : launches) {
    launch(one.grid, one.threads, [&] {
      if (one.name == "tiles") return sequence_tiles(args);
      run(one.name, args);
    });
  }
}

template <ForwardConfig kConfig>
void run_forward(Tensors& t) {
  expect_legal(kConfig, t.p);
  ForwardArgs pointers = t.forward_args();
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  pointers.workspace = workspace.data();
  run_all(forward_launches(t.p, kConfig), with_pointers(kernel_args(t.p, kConfig), pointers),
          [](const std::string&, const KernelArgs& args) {
            if constexpr (kConfig.sliced()) {
              sm80_sliced_forward<kConfig>(args);
            } else {
              sm80_forward<kConfig>(args);
            }
          });
}

template <BackwardConfig kConfig>
void run_backward(Tensors& t) {
  expect_legal(kConfig, t.p);
  BackwardArgs pointers = t.backward_args();
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  pointers.workspace = workspace.data();
  run_all(backward_launches(t.p, kConfig), with_pointers(kernel_args(t.p, kConfig), pointers),
          [](const std::string& name, const KernelArgs& args) {
            if (name == "delta") return delta<kConfig.element, kConfig.varlen>(args);
            if (name == "dsinks") return sink_gradient<kConfig.element, kConfig.varlen>(args);
            if constexpr (kConfig.sliced()) {
              if (name == "dv") return sm80_sliced_keys<kConfig, true>(args);
              if (name == "dk") return sm80_sliced_keys<kConfig, false>(args);
              sm80_sliced_queries<kConfig>(args);
            } else {
              if (name == "dbias") return sm80_bias_gradient<kConfig>(args);
              if (name == "dk dv") return sm80_backward_keys<kConfig>(args);
              sm80_backward_queries<kConfig>(args);
            }
          });
}

// Both passes of a line's problem by these configurations.
template <ForwardConfig kForward, BackwardConfig kBackward>
void expect_both_right(const std::string& line) {
  Tensors t(line, 5);
  run_forward<kForward>(t);
  expect_met(check_forward(t.p, t.forward_args()), line);
  run_backward<kBackward>(t);
  expect_met(check_backward(t.p, t.backward_args()), line);
}

}  // namespace dfa::emulated
