// Hopper's forward of heads above 256 columns on a processor: its own source, held against fp64.
#include "emulated/hopper_forward.h"
// and then:
#include "kernels/forward/sm90_sliced_forward.cuh"
#include "kernels/schedule/sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig sliced(DType element, int d, int dv) {
  ForwardConfig c = hopper_forward(element, d, 64, 64, 4, 1);
  c.value_dim = dv;
  c.warps = 8;
  return c;
}

template <ForwardConfig kConfig>
void run_sliced(Tensors& t, unsigned blocks) {
  expect_legal(kConfig, t.p);
  const std::vector<KernelLaunch> launches = forward_launches(t.p, kConfig);
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  const Sm90ForwardArgs args =
      cuda::HopperForwardArgs(t.p, kConfig).with(pointers, static_cast<int>(blocks));
  if constexpr (kConfig.varlen) {
    launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
  }
  const std::size_t forward = kConfig.varlen ? 1 : 0;
  launch(blocks, launches[forward].threads, [&] { sm90_sliced_forward<kConfig>(args); });
  if constexpr (kConfig.num_splits > 0) {
    launch(launches[1].grid, launches[1].threads, [&] { combine_splits<kConfig>(args); });
  }
}

template <ForwardConfig kConfig>
void expect_right(const std::string& rest) {
  expect_right_and_same(std::string("fwd ") + name_of(kConfig.element) + " " + rest,
                        [](Tensors& t, unsigned blocks) { run_sliced<kConfig>(t, blocks); });
}

constexpr ForwardConfig with_heads(ForwardConfig c, int pack_gqa) {
  c.pack_gqa = pack_gqa;
  return c;
}

constexpr ForwardConfig with_splits(ForwardConfig c, int num_splits) {
  c.num_splits = num_splits;
  return c;
}

// Rows that see no key, odd and even numbers of tiles, tiles that one row of 64 sees alone.
TEST(EmulatedHopperSliced, Masks) {
  constexpr auto kConfig = sliced(kBf16, 512, 512);
  expect_right<kConfig>("causal b1 hq2 hk1 s200 d512");
  expect_right<kConfig>("b1 h1 sq65 sk300 d512");
  expect_right<kConfig>("causal b1 h1 sq130 sk60 d512");
  expect_right<kConfig>("b1 h2 sq100 sk390 d512 window(90,20) layout(bshd)");
  expect_right<kConfig>("b1 h1 sq1 sk1 d512 scale(-0.1)");
  expect_right<ranges(kConfig)>("causal b1 h1 s200 d512 chunk(70)");
}

TEST(EmulatedHopperSliced, HeadDims) {
  expect_right<sliced(kFp16, 512, 512)>("causal b2 hq2 hk1 sq70 sk200 d512");
  expect_right<sliced(kBf16, 384, 384)>("causal b1 h1 s150 d264");
  expect_right<sliced(kBf16, 576, 512)>("b1 hq4 hk1 sq80 sk140 d576 dv512");
  expect_right<sliced(kBf16, 512, 384)>("b1 h1 s130 d440 dv328");
}

TEST(EmulatedHopperSliced, LogitsAndSinks) {
  expect_right<with_logits(sliced(kBf16, 512, 512), kSoftcap | kSink)>(
      "causal b1 hq2 hk1 s150 d512 softcap(4) sink");
  expect_right<with_logits(sliced(kBf16, 512, 512), kAlibi)>("b1 h2 sq70 sk190 d512 alibi");
}

TEST(EmulatedHopperSliced, PackedHeads) {
  expect_right<with_heads(sliced(kBf16, 576, 512), 16)>("causal b2 hq32 hk1 sq3 sk150 d576 dv512");
  expect_right<with_heads(sliced(kFp16, 512, 512), 3)>("causal b1 hq6 hk2 sq20 sk99 d512");
}

// Splits of no, one and several tiles of keys, of one work tile and of two.
TEST(EmulatedHopperSliced, Splits) {
  expect_right<with_splits(sliced(kBf16, 576, 512), 4)>("b1 h1 sq3 sk700 d576 dv512");
  expect_right<with_splits(sliced(kFp16, 512, 512), 5)>("causal b1 hq2 hk1 sq70 sk330 d512");
  expect_right<with_splits(sliced(kBf16, 512, 384), 7)>("b3 h1 sq65 sk130 d440 dv328");
  expect_right<with_splits(sliced(kBf16, 384, 384), 3)>("window(90,20) b1 h1 sq130 sk60 d264");
  expect_right<with_splits(with_heads(sliced(kBf16, 576, 512), 16), 5)>(
      "causal b2 hq32 hk1 sq3 sk250 d576 dv512");
  expect_right<with_splits(with_heads(sliced(kFp16, 512, 512), 48), 5)>(
      "causal b1 hq96 hk1 sq2 sk250 d512 layout(bshd)");
  expect_right<with_splits(with_logits(sliced(kBf16, 512, 512), kSoftcap | kSink), 4)>(
      "causal b1 hq2 hk1 sq5 sk400 d512 softcap(4) sink");
  expect_right<with_splits(ranges(sliced(kBf16, 512, 512)), 3)>("causal b1 h1 s200 d512 chunk(70)");
}

TEST(EmulatedHopperSliced, PackedSequences) {
  constexpr auto kConfig = [] {
    ForwardConfig c = sliced(kBf16, 512, 512);
    c.varlen = true;
    return c;
  }();
  const std::string line = "fwd bf16 causal hq2 hk1 d512 lens(70,0,1,200) lens_k(100,30,0,200)";
  expect_right_and_same(line, [](Tensors& t, unsigned blocks) { run_sliced<kConfig>(t, blocks); });
}

}  // namespace
}  // namespace dfa
