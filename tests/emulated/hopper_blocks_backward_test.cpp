// Lists of blocks by Hopper's own backward: its source on a processor, held against fp64.
#include "emulated/hopper_blocks_backward.h"

#include "emulated/deaf.h"
#include "emulated/other_lists.h"
#include "random_lines.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;
constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;

// Every density, ragged edges on both sides, heads and batches with lists of their own, bitmaps,
// blocks that are no square and those that several tiles make.
constexpr const char* kLines[] = {
    "b1 hq4 hk2 sq300 sk390 blocks(random,0.4,1,128x128)",
    "b2 hq4 hk2 sq200 sk333 blocks(random,0.5,2,128x128,b,h,partial)",
    "b1 hq2 hk1 sq500 sk500 blocks(random,0.1,3,128x128,h)",
    "b1 hq2 hk2 sq260 sk300 blocks(random,1,4,256x256,partial)",
    "b1 h1 sq200 sk140 blocks(random,0,5,128x128)",
    "causal b1 hq2 hk1 sq300 sk300 blocks(random,0.7,6,128x128,partial)",
    "b1 hq2 hk1 sq200 sk400 window(170,20) blocks(random,0.9,7,128x128,partial)",
    "causal b1 h1 sq300 sk140 blocks(random,1,8,128x128)",
    "b1 hq4 hk1 sq130 sk280 scale(-0.3) blocks(random,0.5,9,128x128,h,partial)",
    "b1 h1 sq1 sk300 blocks(random,0.5,10,128x128,partial)",
    "b1 hq4 hk2 sq200 sk200 sink blocks(random,0.5,11,128x128,h,partial)",
};

TEST(EmulatedHopperBlocksBackward, ListsOfEveryDensity) {
  for (const char* rest : kLines) expect_right<listed(kBf16, 64, 64)>(rest);
  for (const char* rest : {kLines[1], kLines[5]}) {
    expect_right<listed(kFp16, 128, 128)>(rest);
    expect_right<listed(kBf16, 96, 64)>(rest);
  }
  expect_right<listed(kBf16, 128, 128)>("b1 hq4 hk2 sq150 sk333 blocks(random,0.5,12,64x128,h)");
}

// Blocks in no list are not read: queries and gradients of the second are NaN.
TEST(EmulatedHopperBlocksBackward, WhatIsInNoListMayHoldAnything) {
  const std::string line = "bwd bf16 b1 h1 sq512 sk256 d64 blocks(random,1,1,128x128,partial)";
  Tensors calm(line, 5);
  calm.p.blocks->states = {kAll, kNone, kNone, kNone, 0, 1, kNone, kAll};
  calm.blocks = BlockArrays(calm.p);
  const Backend& truth = reference_backend();
  Problem p = calm.p;
  p.pass = Pass::forward;
  truth.forward(truth.plan(p, {.backend = "reference"}), calm.forward_args(), {});
  Tensors nan = calm;
  for (std::int64_t i = 128 * 64; i < 256 * 64; ++i) {
    nan.set(nan.q, i, std::nanf(""));
    nan.set(nan.d_o, i, std::nanf(""));
  }
  for (Tensors* t : {&calm, &nan}) run_listed<listed(kBf16, 64, 64)>(*t);
  expect_met(check_backward(calm.p, calm.backward_args()), line);
  EXPECT_TRUE(calm.dk == nan.dk);
  EXPECT_TRUE(calm.dv == nan.dv);
  for (std::int64_t i = 128 * 64; i < 256 * 64; ++i) {  // see nobody
    ASSERT_EQ(calm.at(calm.dq, i), 0);
    ASSERT_EQ(nan.at(nan.dq, i), 0);
  }
}

// Kernels hide what is no block and no bitmap, and look at no memory for it.
TEST(EmulatedHopperBlocksBackward, EntriesThatAreNoneAreHidden) {
  const std::string line = "bwd bf16 b1 h1 sq512 sk128 d64 blocks(random,1,1,128x128,partial)";
  Tensors right = with_forward(line);
  right.p.blocks->states = {kAll, kNone, 0, kNone};
  Tensors wrong = right;
  right.blocks = BlockArrays(right.p);
  wrong.p.blocks->states = {kAll, 1, 0, 1};
  wrong.blocks = BlockArrays(wrong.p);
  wrong.blocks.q_bitmaps[3] = 2;
  wrong.blocks.q_counts[0] = 1000;
  run_listed<listed(kBf16, 64, 64)>(right);
  for (const std::int32_t index : {1 << 30, -7, 4}) {
    wrong.blocks.q_indices[1] = index;
    run_listed<listed(kBf16, 64, 64)>(wrong);
    EXPECT_EQ(right.dk, wrong.dk) << index;
    EXPECT_EQ(right.dv, wrong.dv) << index;
    EXPECT_EQ(right.dq, wrong.dq) << index;
  }
}

TEST(EmulatedHopperBlocksBackward, RandomLists) {
  Dice dice(17);
  for (int n = 0; n < 12; ++n) {
    std::string line = random_lists_line(dice, "bf16", "d64", 128);
    line.replace(0, 3, "bwd");
    SCOPED_TRACE(line);
    Tensors t = with_forward(line);
    const WithTiming with(n % 2 == 0 ? kLate : kCrossed);
    run_listed<listed(kBf16, 64, 64)>(t);
    expect_met(check_backward(t.p, t.backward_args()), line);
  }
}

TEST(EmulatedHopperBlocksBackward, FaultsAreSeen) {
  const auto with = [](Timing asked, Deaf to) {
    return is_wrong(asked, to, [] {
      Tensors t = with_forward("bwd bf16 causal b1 hq2 hk1 s390 d64 blocks(random,0.8,3,partial)");
      run_listed<listed(kBf16, 64, 64)>(t);
      return check_backward(t.p, t.backward_args());
    });
  };
  for (const Timing asked : {kEager, kLate, kCrossed}) EXPECT_FALSE(with(asked, {}));
  // But not to phases: where a tile lies in the sums would be read before it is told.
  EXPECT_TRUE(with(kCrossed, {.fences = true}));
  EXPECT_TRUE(with(kCrossed, {.named_barriers = true}));
  EXPECT_TRUE(with(kLate, {.stores = true}));
}

TEST(EmulatedHopperBlocksBackward, ListsThatDifferAreSeen) {
  const auto passes = [](const std::function<void(BlockArrays&)>& change) {
    Tensors t =
        with_forward("bwd bf16 b1 hq2 hk1 sq300 sk333 d64 blocks(random,0.6,3,128x128,partial)");
    const BlockArrays right = t.blocks;
    change(t.blocks);
    run_listed<listed(kBf16, 64, 64)>(t);
    t.blocks = right;
    return check_backward(t.p, t.backward_args()).ok;
  };
  expect_other_lists_seen(
      {&BlockArrays::q_counts, &BlockArrays::q_indices, &BlockArrays::q_bitmaps}, passes);
}

}  // namespace
}  // namespace dfa
