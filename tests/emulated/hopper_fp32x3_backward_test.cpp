// Hopper's forward and backward in fp32 on a processor, one after the other, held against fp64.
#include "emulated/warps.h"
// and then:
#include "emulated/hopper_fp32x3.h"
#include "kernels/backward/sm90_fp32x3_backward.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kFp32 = DType::fp32;

constexpr BackwardConfig backward(int dim, int value_dim, int block_q, int stages) {
  return {.target = Target::cuda_sm90,
          .element = kFp32,
          .head_dim = dim,
          .value_dim = value_dim,
          .block_q = block_q,
          .block_k = 64,
          .warps = 8,
          .stages = stages,
          .ctas = 1,
          .dq = DqAccumulation::serialized};
}

constexpr ForwardConfig forward(int dim, int value_dim, int block_q) {
  ForwardConfig config = hopper_forward(kFp32, dim, block_q, 64, 1, 1);
  config.value_dim = value_dim;
  return config;
}

template <BackwardConfig kConfig>
void run_backward(Tensors& t) {
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  BackwardArgs pointers = t.backward_args();
  pointers.workspace = workspace.data();
  const auto launches = backward_launches(t.p, kConfig);
  const BackwardPlanes split = fp32x3_planes_args(t.p, kConfig, pointers);
  const cuda::HopperFp32x3BackwardArgs all(t.p, kConfig);
  const Sm90Fp32x3DeltaArgs rows = all.delta(pointers, split);
  const Sm90Fp32x3BackwardArgs args = all.with(pointers, split);
  launch(launches[0].grid, launches[0].threads, [&] { fp32x3_planes<DType::bf16>(split.rows); });
  launch(launches[1].grid, launches[1].threads,
         [&] { sm90_fp32x3_delta<kConfig.value_dim>(rows); });
  launch(launches[2].grid, launches[2].threads, [&] { fp32x3_planes<DType::bf16>(split.inputs); });
  workspace.zero(launches[3].zeroed);
  launch(launches[3].grid, launches[3].threads, [&] { sm90_fp32x3_backward<kConfig>(args); });
  launch(launches[4].grid, launches[4].threads, [&] { sm90_fp32x3_dq<kConfig>(args.args); });
}

template <ForwardConfig kForward, BackwardConfig kBackward>
void expect_right(const std::string& line) {
  for (const Timing asked : {kLate, kCrossed}) {
    const WithTiming with(asked);
    Tensors t(line, 5);
    expect_legal(kForward, t.p);
    expect_legal(kBackward, t.p);
    run_fp32x3_forward<kForward>(t);
    run_backward<kBackward>(t);
    expect_met(check_forward(t.p, t.forward_args()), line);
    expect_met(check_backward(t.p, t.backward_args()), line);
  }
}

constexpr auto kForward64 = forward(64, 64, 128);
constexpr auto kWide = backward(64, 64, 128, 1), kDeep = backward(64, 64, 64, 2);

TEST(EmulatedHopperFp32x3Backward, HeadsOf64) {
  expect_right<kForward64, kWide>("fwdbwd fp32 causal b1 hq4 hk2 sq200 sk150 d64");
  expect_right<kForward64, kWide>("fwdbwd fp32 b2 h1 sq129 sk200 d40 window(60,9) layout(bshd)");
  expect_right<kForward64, kDeep>("fwdbwd fp32 causal b1 h1 sq200 sk90 d64");  // rows without a key
  expect_right<kForward64, kDeep>("fwdbwd fp32 causal b1 hq2 hk1 s260 d64 scale(-0.3)");
}

TEST(EmulatedHopperFp32x3Backward, MoreHeadsThanAtOnce) {
  expect_right<kForward64, kDeep>("fwdbwd fp32 causal b1 h11 s70 d64");
}

TEST(EmulatedHopperFp32x3Backward, HeadsOf96And128) {
  expect_right<forward(96, 96, 64), backward(96, 96, 64, 1)>(
      "fwdbwd fp32 causal b1 hq2 hk1 s140 d96");
  expect_right<forward(128, 128, 64), backward(128, 128, 64, 1)>(
      "fwdbwd fp32 causal b1 hq2 hk1 s200 d128");
  expect_right<forward(128, 128, 64), backward(128, 128, 64, 1)>(
      "fwdbwd fp32 b1 h1 sq150 sk130 d128 window(50,30)");
}

TEST(EmulatedHopperFp32x3Backward, DimsThatDiffer) {
  expect_right<forward(64, 128, 64), backward(64, 128, 64, 1)>(
      "fwdbwd fp32 b1 h1 sq70 sk130 d64 dv128");
  expect_right<forward(128, 64, 64), backward(128, 64, 64, 1)>(
      "fwdbwd fp32 causal b1 h1 s130 d128 dv48");
}

TEST(EmulatedHopperFp32x3Backward, SteepScales) {
  expect_right<kForward64, kWide>("fwdbwd fp32 b1 h2 sq200 sk150 d64 scale(2)");
  expect_right<kForward64, kDeep>("fwdbwd fp32 causal b1 h2 s150 d64 scale(20)");
  expect_right<forward(128, 128, 64), backward(128, 128, 64, 1)>(
      "fwdbwd fp32 b1 h1 s150 d128 scale(20)");
  expect_right<kForward64, kDeep>("fwdbwd fp32 b1 h4 sq100 sk16 d64 scale(6)");
}

// exp(score - lse) has to be 1, and dp - delta 0, to the last bit: of many rows some would show
// products that come in another order.
TEST(EmulatedHopperFp32x3Backward, ASingleKey) {
  expect_right<kForward64, kWide>("fwdbwd fp32 b1 h4 sq1000 sk1 d64");
  expect_right<kForward64, kDeep>("fwdbwd fp32 b1 h50 sq8 sk1 d64 scale(6)");
  expect_right<forward(128, 128, 64), backward(128, 128, 64, 1)>("fwdbwd fp32 b1 h1 s1 d128");
}

}  // namespace
}  // namespace dfa
