// Heads above 256 columns, which the portable kernels take slice by slice: their own sources on a
// processor, held against fp64.
#include "emulated/portable.h"
// and then:
#include "kernels/schedule/paged_sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kTf32 = DType::tf32, kFp32 = DType::fp32;

constexpr ForwardConfig forward_of(DType element, int d, int dv, int block_q = 64,
                                   int block_k = 32) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = gpu_head_dim(d),
          .value_dim = gpu_head_dim(dv),
          .block_q = block_q,
          .block_k = block_k,
          .warps = block_q / 16,
          .ctas = 1};
}

constexpr BackwardConfig backward_of(DType element, int d, int dv, int owned = 32,
                                     int walked = 32) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = gpu_head_dim(d),
          .value_dim = gpu_head_dim(dv),
          .block_q = walked,
          .block_k = owned,
          .warps = owned / 16,
          .ctas = 1,
          .dq_block_q = owned,
          .dq_block_k = walked,
          .dq_warps = owned / 16,
          .dq_ctas = 1};
}

template <typename Config>
constexpr Config varlen(Config config) {
  config.varlen = true;
  return config;
}

template <typename Config>
constexpr Config ranges(Config config) {
  config.ranges = true;
  return config;
}

template <typename Config>
constexpr Config stages(Config config, int count) {
  config.stages = count;
  return config;
}

template <ForwardConfig kForward>
void expect_forward(const std::string& line) {
  Tensors t(line, 5);
  run_forward<kForward>(t);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

template <ForwardConfig kForward, BackwardConfig kBackward>
void expect_right(const std::string& line) {
  Tensors t(line, 5);
  run_forward<kForward>(t);
  expect_met(check_forward(t.p, t.forward_args()), line);
  run_backward<kBackward>(t);
  expect_met(check_backward(t.p, t.backward_args()), line);
}

template <DType kElement, int kDim, int kValueDim = kDim, int kWalked = 32>
void expect_element(const std::string& rest) {
  expect_right<forward_of(kElement, kDim, kValueDim, 32, kWalked),
               backward_of(kElement, kDim, kValueDim, 32, kWalked)>(
      std::string("fwdbwd ") + name_of(kElement) + " " + rest + " d" + std::to_string(kDim) +
      " dv" + std::to_string(kValueDim));
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedSlices, EveryWidth) {
  expect_element<kBf16, 264>("causal b1 hq2 hk1 sq50 sk70");
  expect_element<kBf16, 320>("b1 h1 sq33 sk65");
  expect_element<kBf16, 384>("causal b1 h1 sq70 sk40");  // the first rows see nothing
  expect_element<kBf16, 392>("b1 h1 sq40 sk40 window(9,5)");
  expect_element<kBf16, 512>("causal b2 hq4 hk2 sq65 sk70");
}

TEST(EmulatedSlices, ValuesOfAnotherWidth) {
  expect_element<kBf16, 512, 64>("causal b1 hq2 hk1 sq50 sk70");
  expect_element<kBf16, 64, 512>("causal b1 hq2 hk1 sq50 sk70");
  expect_element<kBf16, 8, 264>("b1 h1 sq40 sk33 layout(bshd)");
  expect_element<kBf16, 504, 328>("b1 h1 sq40 sk33 window(20,0)");
  expect_element<kFp32, 264, 16, 16>("causal b1 h1 s40");
}

TEST(EmulatedSlices, EveryElement) {
  for (const char* rest :
       {"causal b1 hq2 hk1 sq40 sk70", "b1 h1 sq33 sk17 window(5,9)", "b1 h1 s24 scale(-0.2)"}) {
    expect_element<kTf32, 512, 512, 16>(rest);
    expect_element<kFp32, 512, 512, 16>(rest);
  }
  expect_element<kTf32, 320, 384, 16>("causal b1 h1 s40");
}
#endif

// Of a row that sees one key the gradient of its score is 0 to the last bit.
TEST(EmulatedSlices, Fp32KeepsTheLastBits) {
  expect_element<kFp32, 512, 512, 16>("b1 h1 s1");
  expect_element<kFp32, 512, 512, 16>("b1 h2 sq40 sk1 scale(4)");
  expect_element<kFp32, 320, 320, 16>("causal b1 h2 s40 scale(3)");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedSlices, TilesOfOtherSizes) {
  expect_right<forward_of(kBf16, 512, 512, 128, 64), backward_of(kBf16, 512, 512, 64, 32)>(
      "fwdbwd bf16 causal b1 hq2 hk1 s150 d512");
  expect_right<forward_of(kBf16, 512, 512, 16, 16), backward_of(kBf16, 512, 512, 16, 16)>(
      "fwdbwd bf16 b1 h1 sq40 sk50 d512");
  expect_right<stages(forward_of(kBf16, 384, 384, 32, 16), 3),
               stages(backward_of(kBf16, 384, 384, 32, 16), 3)>(
      "fwdbwd bf16 causal b1 h1 s70 d384");
}

TEST(EmulatedSlices, LatentHeads) {
  constexpr auto kForward = forward_of(kBf16, 576, 512, 64, 32);
  expect_forward<kForward>("fwd bf16 causal b1 hq16 hk1 sq17 sk70 d576 dv512");
  expect_forward<kForward>("fwd bf16 b2 hq4 hk1 sq1 sk100 d576 dv512");
  expect_forward<forward_of(kFp32, 576, 512, 32, 16)>("fwd fp32 b1 hq4 hk1 sq9 sk40 d576 dv512");
  expect_forward<forward_of(kTf32, 576, 512, 32, 16)>("fwd tf32 b1 hq4 hk1 sq9 sk40 d520 dv392");
}
#endif

TEST(EmulatedSlices, PackedSequences) {
  for (const char* rest :
       {"causal hq4 hk2 lens(70,1,0,40) lens_k(90,1,9,0)", "window(40,9) hq2 hk2 lens(50,0,17)"}) {
    expect_right<varlen(forward_of(kBf16, 512, 512, 32)), varlen(backward_of(kBf16, 512, 512))>(
        std::string("fwdbwd bf16 ") + rest + " d512");
    expect_right<varlen(forward_of(kFp32, 64, 320, 32, 16)),
                 varlen(backward_of(kFp32, 64, 320, 32, 16))>(std::string("fwdbwd fp32 ") + rest +
                                                              " d64 dv320");
  }
}

TEST(EmulatedSlices, KeysInPages) {
  constexpr auto config_of = [](DType element) {
    ForwardConfig config = varlen(forward_of(element, 576, 512, 32, 16));
    config.paged = true;
    return config;
  };
  const auto expect_paged = [](auto config, const char* line) {
    constexpr ForwardConfig kConfig = decltype(config)::value;
    Tensors t(line, 7);
    expect_legal(kConfig, t.p);
    ForwardArgs pointers = t.forward_args();
    Workspace workspace(forward_workspace_bytes(t.p, kConfig));
    pointers.workspace = workspace.data();
    const KernelArgs args = with_pointers(kernel_args(t.p, kConfig), pointers);
    for (const KernelLaunch& one : forward_launches(t.p, kConfig)) {
      launch(one.grid, one.threads, [&] {
        if (one.name == "tiles") return paged_sequence_tiles(args);
        sm80_sliced_forward<kConfig>(args);
      });
    }
    expect_met(check_forward(t.p, t.forward_args()), line);
  };
  constexpr ForwardConfig kHalves = config_of(kBf16), kWhole = config_of(kFp32);
  expect_paged(std::integral_constant<ForwardConfig, kHalves>{},
               "fwd bf16 causal hq16 hk1 d576 dv512 lens(1,3,40) lens_k(70,3,55) page(16)");
  expect_paged(std::integral_constant<ForwardConfig, kWhole>{},
               "fwd fp32 causal hq4 hk1 d576 dv512 lens(1,3) lens_k(30,3) page(7)");
}

template <typename Config>
constexpr Config logits(Config config) {
  config.softcap = config.alibi = true;
  if constexpr (requires { config.sink; }) config.sink = true;
  return config;
}

constexpr ForwardConfig biased(ForwardConfig config) {
  config.bias = true;
  return config;
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedSlices, LogitsThatAreNotPlain) {
  expect_right<logits(forward_of(kBf16, 512, 512, 32)), logits(backward_of(kBf16, 512, 512))>(
      "fwdbwd bf16 causal b1 hq4 hk2 sq50 sk70 d512 softcap(4) alibi sink");
  expect_right<logits(forward_of(kFp32, 320, 512, 32, 16)),
               logits(backward_of(kFp32, 320, 512, 32, 16))>(
      "fwdbwd fp32 b1 hq4 hk2 sq50 sk30 d320 dv512 softcap(4) alibi sink");
  expect_forward<biased(forward_of(kBf16, 512, 512, 32))>(
      "fwd bf16 causal b1 hq2 hk1 sq50 sk70 d512 bias(1,h)");
}
#endif

TEST(EmulatedSlices, ChunksAndPrefixes) {
  for (const char* mask : {"causal chunk(7)", "window(20,3) chunk(48)", "causal prefix(40)"}) {
    expect_right<ranges(forward_of(kBf16, 320, 320, 32)), ranges(backward_of(kBf16, 320, 320))>(
        std::string("fwdbwd bf16 ") + mask + " b1 hq2 hk1 sq60 sk90 d320");
  }
}

}  // namespace
}  // namespace dfa
