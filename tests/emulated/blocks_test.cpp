// The portable kernels' own sources over lists of blocks, on a processor, held against fp64.
#include "emulated/portable.h"

namespace dfa {
namespace {

using namespace emulated;

struct Tile {
  int block_q = 64, block_k = 32, warps = 4;
};

constexpr ForwardConfig listed_forward(DType element, int dim, Tile tile = {}) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = tile.block_q,
          .block_k = tile.block_k,
          .warps = tile.warps,
          .blocks = true};
}

constexpr BackwardConfig listed_backward(DType element, int dim, Tile tile = {}, int sharing = 1) {
  return {.target = Target::cuda_sm80,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = tile.block_k,
          .block_k = tile.block_q,
          .warps = tile.warps * sharing,
          .sharing = sharing,
          .dq_block_q = tile.block_q,
          .dq_block_k = tile.block_k,
          .dq_warps = tile.warps,
          .blocks = true};
}

template <ForwardConfig kConfig>
void forward_by_lists(Tensors& t) {
  expect_legal(kConfig, t.p);
  const BlockKernelArgs args =
      with_pointers(block_kernel_args(t.p, kernel_args(t.p, kConfig)), t.forward_args());
  run_all(forward_launches(t.p, kConfig), args,
          [](const std::string&, const BlockKernelArgs& all) { sm80_forward<kConfig>(all); });
}

template <BackwardConfig kConfig>
void backward_by_lists(Tensors& t) {
  expect_legal(kConfig, t.p);
  BackwardArgs pointers = t.backward_args();
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  pointers.workspace = workspace.data();
  const BlockKernelArgs args =
      with_pointers(block_kernel_args(t.p, kernel_args(t.p, kConfig)), pointers);
  run_all(backward_launches(t.p, kConfig), args,
          [](const std::string& name, const BlockKernelArgs& all) {
            if (name == "delta") return delta<kConfig.element, kConfig.varlen>(all);
            if (name == "dsinks") return sink_gradient<kConfig.element, kConfig.varlen>(all);
            if (name == "dk dv") return sm80_backward_keys<kConfig>(all);
            sm80_backward_queries<kConfig>(all);
          });
}

template <ForwardConfig kForward, BackwardConfig kBackward>
void expect_lists_right(const std::string& rest) {
  const std::string line = std::string("fwdbwd ") + name_of(kForward.element) + " " + rest + " d" +
                           std::to_string(kForward.head_dim);
  Tensors t(line, 5);
  forward_by_lists<kForward>(t);
  expect_met(check_forward(t.p, t.forward_args()), line);
  backward_by_lists<kBackward>(t);
  expect_met(check_backward(t.p, t.backward_args()), line);
}

constexpr DType kHalf = DType::bf16;

// Every density, ragged edges on both sides, heads and batches with lists of their own, bitmaps.
TEST(EmulatedBlocks, ListsOfEveryDensity) {
  for (const char* rest : {"b1 hq4 hk2 sq300 sk260 blocks(random,0.3,1,64x64)",
                           "b2 hq4 hk2 sq140 sk200 blocks(random,0.5,2,64x64,b,h)",
                           "b1 hq4 hk1 sq200 sk333 blocks(random,0.6,3,64x64,h,partial)",
                           "b1 h1 sq500 sk500 blocks(random,0.05,4,64x64)",
                           "b1 h1 sq100 sk100 blocks(random,0,6,64x64)",
                           "b1 h2 sq300 sk130 blocks(random,1,7,128x128,partial)",
                           "b1 h1 sq1 sk300 blocks(random,0.5,8,64x64,partial)",
                           "b1 h1 sq200 sk150 blocks(random,0.7,9,192x128,partial)"}) {
    expect_lists_right<listed_forward(kHalf, 64), listed_backward(kHalf, 64)>(rest);
  }
  expect_lists_right<listed_forward(DType::fp32, 32), listed_backward(DType::fp32, 32)>(
      "b1 hq2 hk1 sq150 sk170 scale(-0.4) blocks(random,0.5,10,64x64,h,partial)");
}

// What the mask hides of a list is passed over.
TEST(EmulatedBlocks, MasksBeside) {
  for (const char* rest : {"causal b1 hq2 hk1 sq300 sk300 blocks(random,0.7,1,64x64,partial)",
                           "b1 h1 sq200 sk300 window(70,20) blocks(random,0.9,2,64x64,partial)",
                           "causal b1 h1 sq300 sk100 blocks(random,1,3,64x64)"}) {
    expect_lists_right<listed_forward(kHalf, 64), listed_backward(kHalf, 64)>(rest);
  }
}

// Warps that share keys, and the smallest blocks there are.
TEST(EmulatedBlocks, OtherTiles) {
  expect_lists_right<listed_forward(kHalf, 64, {128, 64, 4}),
                     listed_backward(kHalf, 64, {64, 64, 4}, 2)>(
      "b1 hq4 hk2 sq300 sk400 blocks(random,0.4,1,128x128,h,partial)");
  expect_lists_right<listed_forward(kHalf, 64, {16, 16, 1}),
                     listed_backward(kHalf, 64, {16, 16, 1})>(
      "b1 h1 sq70 sk90 blocks(random,0.4,2,16x16,partial)");
}

template <bool kSink>
constexpr ForwardConfig with_logits(ForwardConfig c) {
  c.softcap = c.alibi = true;
  c.sink = kSink;
  return c;
}

TEST(EmulatedBlocks, LogitsBeside) {
  constexpr ForwardConfig kForward = with_logits<true>(listed_forward(kHalf, 64));
  constexpr BackwardConfig kBackward = [] {
    BackwardConfig c = listed_backward(kHalf, 64);
    c.softcap = c.alibi = true;
    return c;
  }();
  expect_lists_right<kForward, kBackward>(
      "b2 hq4 hk2 sq150 sk170 softcap(20) alibi sink blocks(random,0.4,11,64x64,b,h,partial)");
}

// Blocks in no list are not read: keys and values of the second are NaN.
TEST(EmulatedBlocks, WhatIsInNoListMayHoldAnything) {
  const std::string line = "fwdbwd bf16 b1 h1 s256 d64 blocks(random,1,1,64x64)";
  Tensors calm(line, 5), nan(line, 5);
  constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;
  for (Tensors* t : {&calm, &nan}) {
    t->p.blocks->states = {kAll,  kNone, kAll, kNone, kNone, kAll,  kNone, kNone,
                           kNone, kNone, kAll, kAll,  kAll,  kNone, kNone, kAll};
    t->blocks = BlockArrays(t->p);
  }
  for (std::int64_t i = 64 * 64; i < 128 * 64; ++i) {
    nan.set(nan.k, i, std::nanf(""));
    nan.set(nan.v, i, std::nanf(""));
  }
  for (Tensors* t : {&calm, &nan}) {
    forward_by_lists<listed_forward(kHalf, 64)>(*t);
    backward_by_lists<listed_backward(kHalf, 64)>(*t);
  }
  EXPECT_TRUE(std::isnan(nan.at(nan.o, 64 * 64)));
  for (std::int64_t i = 0; i < 256 * 64; ++i) {
    if (i / 64 / 64 == 1) continue;
    ASSERT_EQ(calm.at(calm.o, i), nan.at(nan.o, i));
    ASSERT_EQ(calm.at(calm.dq, i), nan.at(nan.dq, i));
    ASSERT_EQ(calm.at(calm.dk, i), nan.at(nan.dk, i));
    ASSERT_EQ(calm.at(calm.dv, i), nan.at(nan.dv, i));
  }
}

// Kernels hide what is no block and no bitmap, and look at no memory for it.
TEST(EmulatedBlocks, EntriesThatAreNoneAreHidden) {
  Tensors right("fwd bf16 b1 h1 sq64 sk256 d64 blocks(random,1,1,64x64,partial)", 5);
  Tensors wrong("fwd bf16 b1 h1 sq64 sk256 d64 blocks(random,1,1,64x64,partial)", 5);
  right.p.blocks->states = {kFullBlock, kAbsentBlock, 0, kAbsentBlock};
  wrong.p.blocks->states = {kFullBlock, 1, 0, 1};
  for (Tensors* t : {&right, &wrong}) t->blocks = BlockArrays(t->p);
  wrong.blocks.kv_indices[1] = 1 << 30;
  wrong.blocks.kv_bitmaps[3] = 2;
  wrong.blocks.kv_counts[0] = 1000;
  forward_by_lists<listed_forward(kHalf, 64)>(right);
  forward_by_lists<listed_forward(kHalf, 64)>(wrong);
  EXPECT_EQ(right.o, wrong.o);
  wrong.blocks.kv_indices[1] = -7;
  forward_by_lists<listed_forward(kHalf, 64)>(wrong);
  EXPECT_EQ(right.o, wrong.o);
}

}  // namespace
}  // namespace dfa
