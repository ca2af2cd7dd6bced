// Few queries a sequence, whose keys are cut into splits on the device: the kernels' own source on
// a processor, held against fp64. Pages lie in no order, and what is of no sequence is NaN
// (Tensors).
#include "emulated/hopper.h"
#include "plan/select.h"
#include "plan/select_split_kv.h"
#include "spec/limits.h"
// and then:
#include "kernels/forward/sm80_split_kv.cuh"
#include "kernels/schedule/split_sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

struct Shape {
  int block_q, block_k, warps, stages, pack_gqa;
};

constexpr ForwardConfig split_forward(DType element, int dim, Shape s, bool paged,
                                      bool logits = false) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = s.block_q,
          .block_k = s.block_k,
          .warps = s.warps,
          .stages = s.stages,
          .ctas = 1,
          .pack_gqa = s.pack_gqa,
          .varlen = true,
          .softcap = logits,
          .sink = logits,
          .paged = paged,
          .split_kv = true};
}

template <ForwardConfig kConfig>
void run(Tensors& t, ForwardArgs pointers, int num_splits, int split_keys) {
  ForwardConfig config = kConfig;
  config.num_splits = num_splits;
  config.split_keys = split_keys;
  expect_legal(config, t.p);
  const auto launches = forward_launches(t.p, config);
  Workspace workspace(forward_workspace_bytes(t.p, config));
  pointers.workspace = workspace.data();
  const SplitKvForwardArgs args = with_pointers(split_kv_args(t.p, config), pointers);
  launch(launches[0].grid, launches[0].threads, [&] { split_sequence_tiles<kConfig.paged>(args); });
  launch(launches[1].grid, launches[1].threads, [&] { sm80_split_kv<kConfig>(args); });
}

template <ForwardConfig kConfig>
void expect_right(const std::string& rest, int num_splits, int split_keys = 0) {
  const std::string line = std::string("fwd ") + name_of(kConfig.element) + " " + rest + " d" +
                           std::to_string(kConfig.head_dim);
  Tensors t(line, 7);
  run<kConfig>(t, t.forward_args(), num_splits, split_keys);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

constexpr auto kBf16 = DType::bf16;

// Lengths of none, one, a page and a row more or less, about those of tiles; queries up to more
// than a tile's; groups of a power of two and not.
constexpr const char* kOfTwo[] = {
    "causal hq4 hk2 lens(7,1,0,16,5,3) lens_k(450,1,9,16,17,15) page(16)",
    "hq4 hk2 lens(1,1,1) lens_k(64,3,500) page(64)",
    "window(40,9) hq2 hk1 lens(20,1,9) lens_k(331,0,64) page(7)",
    "causal b3 hq4 hk2 sq2 sk290 page(1)",
};
constexpr const char* kOfThree[] = {
    "causal hq6 hk2 lens(5,1,0,3) lens_k(450,1,9,66) page(16)",
    "b2 hq3 hk1 sq1 sk700 page(256)",
};

TEST(EmulatedSplitKv, EveryMaskAndSizeOfPages) {
  for (const int splits : {1, 5, 40}) {
    for (const char* rest : kOfTwo) {
      expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, true)>(rest, splits);
      expect_right<split_forward(kBf16, 128, {32, 32, 2, 2, 2}, true)>(rest, splits);
    }
    for (const char* rest : kOfThree) {
      expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 3}, true)>(rest, splits);
      expect_right<split_forward(kBf16, 96, {32, 64, 2, 2, 3}, true)>(rest, splits);
    }
  }
}

TEST(EmulatedSplitKv, PackedKeys) {
  for (const int splits : {1, 30}) {
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, false)>(
        "causal hq4 hk2 lens(7,1,0,16,5,3) lens_k(450,1,9,16,17,15)", splits);
    expect_right<split_forward(kBf16, 256, {16, 32, 2, 2, 1}, false)>(
        "hq2 hk2 lens(2,1) lens_k(200,90)", splits);
  }
}

TEST(EmulatedSplitKv, LogitsThatAreNotPlain) {
  for (const int splits : {1, 12}) {
    for (const char* rest : kOfTwo) {
      expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, true, true)>(
          std::string(rest) + " softcap(4) sink", splits);
    }
  }
}

// More than the list's kernel has threads, some of which have nothing.
TEST(EmulatedSplitKv, ManySequences) {
  std::string lens = "1", lens_k = "5";
  for (int i = 1; i < 300; ++i) {
    lens += i % 7 == 3 ? ",0" : ",1";
    lens_k += "," + std::to_string(i * 37 % 90);
  }
  const std::string line = "hq2 hk1 lens(" + lens + ") lens_k(" + lens_k + ") page(16)";
  for (const int splits : {1, 9, 500}) {
    expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, true)>(line, splits);
    expect_right<split_forward(kBf16, 64, {16, 128, 4, 3, 2}, true)>("causal " + line, splits);
  }
}

TEST(EmulatedSplitKv, NegativeScales) {
  expect_right<split_forward(kBf16, 64, {16, 64, 4, 3, 2}, true)>(
      "hq4 hk2 lens(1,2) lens_k(300,90) page(16) scale(-0.3)", 8);
}

// A sequence's bits do not depend on its company where splits have a size of their own.
TEST(EmulatedSplitKv, SplitsOfOneSizeAreTheSameInEveryBatch) {
  constexpr ForwardConfig kConfig = split_forward(kBf16, 64, {16, 64, 4, 3, 2}, true);
  Tensors alone("fwd bf16 hq4 hk2 d64 lens(2) lens_k(700) page(16)", 7);
  run<kConfig>(alone, alone.forward_args(), 4, 128);
  Tensors more("fwd bf16 hq4 hk2 d64 lens(2,1,1) lens_k(700,90,1000) page(16)", 7);
  // The first sequence's rows, wherever its pages lie.
  for (std::int64_t x = 0; x < 2 * 4 * 64; ++x) more.set(more.q, x, alone.at(alone.q, x));
  for (std::int64_t row = 0; row < 700; ++row) {
    const std::int64_t from = alone.row_in_pages(0, row) * alone.p.k().row,
                       to = more.row_in_pages(0, row) * more.p.k().row;
    for (std::int64_t x = 0; x < 2 * 64; ++x) {
      more.set(more.k, to + x, alone.at(alone.k, from + x));
      more.set(more.v, to + x, alone.at(alone.v, from + x));
    }
  }
  for (const int splits : {4, 90}) {
    run<kConfig>(more, more.forward_args(), splits, 128);
    for (std::int64_t x = 0; x < 2 * 4 * 64; ++x) {
      ASSERT_EQ(more.at(more.o, x), alone.at(alone.o, x)) << x;
    }
  }
}

// One kernel for all lengths and all numbers of splits.
TEST(EmulatedSplitKv, OneKernelForAllLengths) {
  const Limits limits = gpu_limits(90);
  const auto entry = [&](const std::string& lens) {
    const Problem p = parse_problem("fwd bf16 hq32 hk8 d128 page(16) " + lens);
    EXPECT_TRUE(has_few_queries(p));
    const ForwardConfig config = select_forward(p, limits);
    EXPECT_TRUE(config.split_kv) << lens;
    return forward_launches(p, config)[1].entry;
  };
  const std::string one = entry("lens(1) lens_k(1000)");
  EXPECT_EQ(entry("lens(1,1,1) lens_k(70,9000,100000)"), one);
  EXPECT_EQ(entry("lens(3,1,4) lens_k(70,1,200)"), one);
}

}  // namespace
}  // namespace dfa
