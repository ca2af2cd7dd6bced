// Hopper's backward of heads above 256 columns on a processor: its own source, held against fp64.
#include "emulated/hopper_backward.h"
// and then:
#include "kernels/backward/sm90_sliced_backward.cuh"
#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr BackwardConfig sliced(DType element, int d, int dv) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = d,
          .value_dim = dv,
          .warps = 8,
          .ctas = 1};
}

template <BackwardConfig kConfig>
void run_sliced(Tensors& t) {
  expect_legal(kConfig, t.p);
  auto launches = backward_launches(t.p, kConfig);
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  BackwardArgs pointers = t.backward_args();
  pointers.workspace = workspace.data();
  const Sm90BackwardArgs args = cuda::HopperBackwardArgs(t.p, kConfig, 4).with(pointers);
  if constexpr (kConfig.varlen) {
    launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
    launches.erase(launches.begin());
  }
  launch(launches[0].grid, launches[0].threads,
         [&] { delta<kConfig.element, kConfig.varlen>(args.args); });
  run_sinks<kConfig>(launches, args.args);
  const auto of = [&]<SlicedGradient kOf>(int i) {
    launch(launches[i].grid, launches[i].threads,
           [&] { sm90_sliced_backward<kConfig, kOf>(args); });
  };
  of.template operator()<SlicedGradient::dv>(1);
  of.template operator()<SlicedGradient::dk>(2);
  of.template operator()<SlicedGradient::dq>(3);
}

// The same bits whenever copies come and products are made.
template <BackwardConfig kConfig>
void expect_right(const std::string& rest) {
  const std::string line = std::string("bwd ") + name_of(kConfig.element) + " " + rest;
  Tensors crossed = with_forward(line), late = with_forward(line);
  {
    const WithTiming with(kCrossed);
    run_sliced<kConfig>(crossed);
  }
  expect_met(check_backward(crossed.p, crossed.backward_args()), line);
  const WithTiming with(kLate);
  run_sliced<kConfig>(late);
  EXPECT_TRUE(same_gradients(crossed, late)) << line;
}

// Rows that see no key and keys that no row sees, odd and even numbers of tiles, ragged edges.
TEST(EmulatedHopperSlicedBackward, Masks) {
  constexpr auto kConfig = sliced(kBf16, 512, 512);
  expect_right<kConfig>("causal b1 hq2 hk1 s150 d512");
  expect_right<kConfig>("b1 h1 sq65 sk140 d512");
  expect_right<kConfig>("causal b1 h1 sq130 sk60 d512");
  expect_right<kConfig>("b2 h1 sq100 sk190 d512 window(70,20) layout(bshd)");
  expect_right<kConfig>("b1 h1 sq1 sk1 d512 scale(-0.1)");
}

TEST(EmulatedHopperSlicedBackward, HeadDimsAndSinks) {
  expect_right<sliced(kFp16, 512, 512)>("causal b1 hq2 hk1 sq70 sk130 d512");
  expect_right<sliced(kBf16, 384, 384)>("causal b1 hq2 hk2 s90 d264 sink");
  expect_right<sliced(kBf16, 512, 384)>("b1 h1 s70 d440 dv328");
  expect_right<sliced(kFp16, 384, 512)>("causal b1 hq3 hk1 s70 d384 dv504");
}

TEST(EmulatedHopperSlicedBackward, PackedSequences) {
  constexpr auto kConfig = [] {
    BackwardConfig c = sliced(kBf16, 512, 512);
    c.varlen = true;
    return c;
  }();
  expect_right<kConfig>("causal hq2 hk1 d512 lens(70,0,1,130) lens_k(100,30,0,130)");
  expect_right<kConfig>("hq2 hk2 d400 lens(64,65,3) lens_k(3,128,70) window(40,9)");
}

}  // namespace
}  // namespace dfa
