// The portable kernels' own sources on a processor: everything but the instructions themselves,
// held against fp64. What a card would show of layouts, masks, barriers and sums in order shows
// here.
#include <gtest/gtest.h>

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include "kernels/backward/delta.cuh"
#include "kernels/backward/sm80_backward.cuh"
#include "kernels/forward/sm80_forward.cuh"
#include "kernels/launch.h"
#include "reference/check.h"
#include "tensors.h"

namespace dfa {

namespace {

using emulated::launch;

unsigned tiles(std::int64_t rows, int tile) {
  return static_cast<unsigned>((rows + tile - 1) / tile);
}

template <ForwardConfig kForward, BackwardConfig kBackward>
void expect_right(const std::string& line) {
  Tensors t(line, 5);
  const Problem& p = t.p;
  const unsigned q_heads = static_cast<unsigned>(p.b * p.hq), kv_heads = q_heads / (p.hq / p.hk);
  std::vector<float> workspace(backward_workspace_bytes(p, kBackward) / sizeof(float), 0.f);
  BackwardArgs pointers = t.backward_args();
  pointers.workspace = workspace.data();
  KernelArgs args = with_pointers(kernel_args(p), t.forward_args());
  launch(tiles(p.sq, kForward.block_q) * q_heads, kForward.threads(),
         [&] { sm80_forward<kForward>(args); });
  EXPECT_TRUE(check_forward(p, t.forward_args()).ok)
      << line << "\n"
      << check_forward(p, t.forward_args()).summary();

  args = with_pointers(kernel_args(p), pointers);
  launch(static_cast<unsigned>(args.padded_sq) / 16 * q_heads, 128,
         [&] { delta<kBackward.element>(args); });
  launch(tiles(p.sk, kBackward.block_k) * kv_heads, kBackward.threads(),
         [&] { sm80_backward_keys<kBackward>(args); });
  if constexpr (kBackward.dq_serialized()) {
    launch(tiles(p.sq, kBackward.block_q) * q_heads, kBackward.threads(),
           [&] { sm80_serialized_dq<kBackward>(args); });
  } else {
    launch(tiles(p.sq, kBackward.dq_block_q) * q_heads, kBackward.dq_threads(),
           [&] { sm80_backward_queries<kBackward>(args); });
  }
  const CheckReport report = check_backward(p, pointers);
  EXPECT_TRUE(report.ok) << line << "\n" << report.summary();
}

constexpr ForwardConfig forward_of(DType element, int dim, int block_q, int block_k, int warps) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = block_q,
          .block_k = block_k,
          .warps = warps};
}

constexpr BackwardConfig backward_of(DType element, int dim, int block_q, int block_k, int warps,
                                     int sharing, DqAccumulation dq, int dq_block_q) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = block_q,
          .block_k = block_k,
          .warps = warps,
          .sharing = sharing,
          .dq = dq,
          .dq_block_q = dq_block_q,
          .dq_block_k = 32};
}

template <typename Config>
constexpr Config one_stage(Config config) {  // as cuda_sm75 has it
  config.stages = 1;
  return config;
}

constexpr auto kBf16 = DType::bf16, kFp32 = DType::fp32;
constexpr auto kSeparate = DqAccumulation::separate, kSerialized = DqAccumulation::serialized;
constexpr auto kForward64 = forward_of(kBf16, 64, 128, 64, 4);

TEST(EmulatedAttention, DqByAKernelOfItsOwn) {
  constexpr auto kBackward = backward_of(kBf16, 64, 32, 128, 4, 1, kSeparate, 64);
  expect_right<kForward64, kBackward>("fwdbwd bf16 causal b1 hq4 hk2 sq70 sk150 d64");
  expect_right<kForward64, kBackward>("fwdbwd bf16 b2 h1 sq150 sk60 d40 window(30,9) layout(bshd)");
}

TEST(EmulatedAttention, DqInOrder) {
  constexpr auto kBackward = backward_of(kBf16, 64, 32, 128, 4, 1, kSerialized, 128);
  expect_right<kForward64, kBackward>("fwdbwd bf16 causal b1 hq4 hk2 s300 d64");
  expect_right<kForward64, kBackward>("fwdbwd bf16 b1 h1 sq300 sk400 d64 window(100,30)");
  expect_right<kForward64, kBackward>("fwdbwd bf16 causal b1 h1 sq200 sk90 d64");
  expect_right<kForward64, kBackward>("fwdbwd bf16 b5 h13 sq9 sk130 d40");  // 65 heads
  // exp(0 - lse) of keys that do not exist is infinite.
  expect_right<kForward64, kBackward>("fwdbwd bf16 b1 h2 sq100 sk1 d64 scale(20)");
}

TEST(EmulatedAttention, WarpsThatShareKeys) {
  constexpr auto kForward = forward_of(kBf16, 128, 64, 64, 4);
  expect_right<kForward, backward_of(kBf16, 128, 64, 64, 4, 2, kSeparate, 64)>(
      "fwdbwd bf16 causal b1 h1 sq100 sk130 d128");
  expect_right<kForward, backward_of(kBf16, 128, 64, 128, 8, 2, kSerialized, 128)>(
      "fwdbwd bf16 causal b1 hq2 hk1 s200 d128");
}

TEST(EmulatedAttention, OneStageOfCopiesThatAreThereAtOnce) {
  constexpr auto kHalves = one_stage(backward_of(kBf16, 64, 32, 64, 4, 1, kSeparate, 64));
  expect_right<one_stage(kForward64), kHalves>("fwdbwd bf16 causal b1 hq4 hk2 sq70 sk150 d64");
  constexpr auto kShared = one_stage(backward_of(kFp32, 64, 16, 32, 4, 2, kSeparate, 64));
  expect_right<one_stage(forward_of(kFp32, 64, 64, 32, 4)), kShared>(
      "fwdbwd fp32 b1 hq2 hk1 sq70 sk150 d64 window(50,9)");
}

// A row has more 16-byte parts than the block of dq has threads.
constexpr BackwardConfig dq_of_one_warp() {
  BackwardConfig config = backward_of(kFp32, 256, 16, 16, 2, 2, kSeparate, 16);
  config.dq_block_k = 16;
  config.dq_warps = 1;
  return config;
}

TEST(EmulatedAttention, Fp32KeepsTheLastBits) {
  constexpr auto kForward = forward_of(kFp32, 64, 64, 32, 4);
  constexpr auto kBackward = backward_of(kFp32, 64, 32, 64, 4, 1, kSeparate, 64);
  expect_right<kForward, kBackward>("fwdbwd fp32 b1 h1 s1 d8");
  expect_right<kForward, kBackward>("fwdbwd fp32 b1 h2 sq64 sk8 d64 scale(4)");
  expect_right<kForward, kBackward>("fwdbwd fp32 causal b1 h2 s64 d64 scale(3)");
  expect_right<kForward, kBackward>("fwdbwd fp32 b1 hq3 hk1 sq150 sk200 d64 window(0,90)");
  expect_right<forward_of(kFp32, 256, 32, 16, 2), dq_of_one_warp()>(
      "fwdbwd fp32 causal b1 h1 s40 d256");
}

TEST(EmulatedAttention, Tf32) {
  constexpr auto kTf32 = DType::tf32;
  constexpr auto kForward = forward_of(kTf32, 64, 64, 32, 4);
  constexpr auto kBackward = backward_of(kTf32, 64, 32, 64, 4, 1, kSeparate, 64);
  expect_right<kForward, kBackward>("fwdbwd tf32 causal b1 hq2 hk1 sq130 sk150 d64");
  expect_right<kForward, kBackward>("fwdbwd tf32 b1 h1 sq150 sk90 d40 window(20,9)");
  expect_right<forward_of(kTf32, 256, 32, 16, 2),
               backward_of(kTf32, 256, 16, 32, 4, 2, kSeparate, 64)>(
      "fwdbwd tf32 causal b1 h1 s40 d256");
}

}  // namespace
}  // namespace dfa
