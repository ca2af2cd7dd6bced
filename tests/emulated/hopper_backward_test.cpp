// Hopper's backward on a processor: its own source, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/hopper.h"
#include "kernels/backward/delta.cuh"
#include "kernels/backward/sm90_backward.cuh"
#include "reference/backend.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr BackwardConfig config(DType element, int dim, DqSum dq = DqSum::ordered, int turn = 128,
                                int stages = 2) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = dim > 64 ? 64 : 128,
          .block_k = 128,
          .warps = 8,
          .stages = stages,
          .ctas = 1,
          .dq = dq,
          .dq_block_q = turn};
}

// o and lse as fp64 has them.
Tensors with_forward(const std::string& line) {
  Tensors t(line, 5);
  const Backend& truth = reference_backend();
  Problem p = t.p;
  p.pass = Pass::forward;
  truth.forward(truth.plan(p, {.backend = "reference"}), t.forward_args(), {});
  return t;
}

template <BackwardConfig kConfig>
void run(Tensors& t, Timing asked) {
  expect_legal(kConfig, t.p);
  const WithTiming with(asked);
  const auto launches = backward_launches(t.p, kConfig);
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  BackwardArgs pointers = t.backward_args();
  pointers.workspace = workspace.data();
  const Sm90BackwardArgs args = cuda::HopperBackwardArgs(t.p, kConfig).with(pointers);
  launch(launches[0].grid, launches[0].threads, [&] { delta<kConfig.element>(args.args); });
  workspace.zero(launches[1].zeroed);
  launch(launches[1].grid, launches[1].threads, [&] { sm90_backward<kConfig>(args); });
  launch(launches[2].grid, launches[2].threads, [&] { sm90_dq<kConfig>(args.args); });
}

template <BackwardConfig kConfig>
void expect_right(const std::string& line) {
  for (const Timing asked : {kLate, kCrossed}) {
    Tensors t = with_forward(line);
    run<kConfig>(t, asked);
    expect_met(check_backward(t.p, t.backward_args()), line);
  }
}

TEST(EmulatedHopperBackward, HeadsOf64) {
  expect_right<config(kBf16, 64)>("bwd bf16 causal b1 hq4 hk2 sq200 sk300 d64");
  expect_right<config(kBf16, 64)>("bwd bf16 b2 h1 sq129 sk257 d40 window(60,9) layout(bshd)");
  expect_right<config(kBf16, 64)>("bwd bf16 causal b1 h1 sq200 sk90 d64");  // rows without a key
  expect_right<config(kFp16, 64, DqSum::ordered, 128, 3)>("bwd fp16 b1 h1 sq100 sk1 d64");
}

TEST(EmulatedHopperBackward, MoreHeadsThanAtOnce) {
  expect_right<config(kBf16, 64)>("bwd bf16 causal b1 h11 s140 d64");
}

TEST(EmulatedHopperBackward, HeadsOf96And128) {
  expect_right<config(kBf16, 96, DqSum::ordered, 64)>("bwd bf16 causal b1 hq2 hk1 s200 d96");
  expect_right<config(kBf16, 128, DqSum::ordered, 64)>("bwd bf16 causal b1 hq2 hk1 s270 d128");
  expect_right<config(kFp16, 128)>("bwd fp16 b1 h1 sq150 sk200 d128 window(50,30)");
}

TEST(EmulatedHopperBackward, DqUnordered) {
  expect_right<config(kBf16, 64, DqSum::unordered)>("bwd bf16 causal b1 hq2 hk1 s300 d64");
  expect_right<config(kFp16, 128, DqSum::unordered, 64)>("bwd fp16 b1 h1 sq150 sk300 d128");
}

}  // namespace
}  // namespace dfa
