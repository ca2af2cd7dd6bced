// Lists of blocks by Hopper's own forward: its source on a processor, held against fp64.
#include "emulated/hopper_blocks.h"

#include "emulated/deaf.h"
#include "emulated/other_lists.h"
#include "plan/select.h"
#include "random_lines.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;
constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;

template <ForwardConfig kConfig>
void expect_right(const std::string& rest) {
  expect_right_and_same(forward_line<kConfig>(rest), [](Tensors& t, unsigned blocks) {
    run_listed<kConfig>(t.p, t.forward_args(), blocks);
  });
}

// Every density, ragged edges on both sides, heads and batches with lists of their own, bitmaps,
// blocks that are no square and those that several tiles make.
constexpr const char* kLines[] = {
    "b1 hq4 hk2 sq300 sk390 blocks(random,0.4,1,128x128)",
    "b2 hq4 hk2 sq200 sk333 blocks(random,0.5,2,128x128,b,h,partial)",
    "b1 hq2 hk1 sq500 sk500 blocks(random,0.1,3,128x128,h)",
    "b1 hq2 hk2 sq260 sk300 blocks(random,1,4,256x128,partial)",
    "b1 h1 sq200 sk140 blocks(random,0,5,128x128)",
    "causal b1 hq2 hk1 sq300 sk300 blocks(random,0.7,6,128x128,partial)",
    "b1 hq2 hk1 sq200 sk400 window(170,20) blocks(random,0.9,7,128x128,partial)",
    "causal b1 h1 sq300 sk140 blocks(random,1,8,128x128)",
    "b1 hq4 hk1 sq130 sk280 scale(-0.3) blocks(random,0.5,9,128x128,h,partial)",
    "b1 h1 sq1 sk300 blocks(random,0.5,10,128x128,partial)",
};

TEST(EmulatedHopperBlocks, ListsOfEveryDensity) {
  for (const char* rest : kLines) {
    expect_right<listed(hopper_forward(kBf16, 64, 128, 64, 2, 2))>(rest);
    expect_right<listed(hopper_forward(kFp16, 128, 64, 64, 2, 1))>(rest);
  }
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperBlocks, OtherTiles) {
  constexpr auto kHeld = [] {
    ForwardConfig c = listed(hopper_forward(kBf16, 128, 128, 64, 2, 2));
    c.q_columns_in_regs = 128;
    return c;
  };
  for (const char* rest : {kLines[1], kLines[5]}) {
    expect_right<kHeld()>(rest);
    expect_right<listed(hopper_forward(kBf16, 128, 128, 128, 2, 2))>(rest);
    expect_right<listed(hopper_forward(kBf16, 64, 128, 128, 2, 2, true))>(rest);
    expect_right<listed(hopper_forward(kBf16, 256, 64, 64, 2, 1))>(rest);
  }
  expect_right<listed(hopper_forward(kBf16, 64, 256, 64, 4, 2))>(kLines[3]);
  expect_right<listed(hopper_forward(kFp16, 64, 192, 96, 2, 2))>(
      "causal b1 hq2 hk1 sq400 sk500 blocks(random,0.6,11,192x96,partial)");
  expect_right<listed(hopper_forward(kBf16, 64, 64, 64, 2, 2))>(
      "b1 hq4 hk2 sq150 sk333 blocks(random,0.5,12,64x64,h,partial)");
}
#endif

TEST(EmulatedHopperBlocks, LogitsThatAreNotPlain) {
  constexpr int kEach = kSoftcap | kAlibi | kSink;
  for (const char* rest : {kLines[1], kLines[5]}) {
    expect_right<listed(hopper_forward(kBf16, 64, 128, 64, 2, 2), kEach)>(rest + said_of(kEach));
    expect_right<listed(hopper_forward(kFp16, 64, 64, 64, 2, 1), kSink)>(rest + said_of(kSink));
  }
}

// Values that leave the range of a first tile's reference: a work tile is done again.
TEST(EmulatedHopperBlocks, TilesThatAreDoneAgain) {
  for (const char* rest :
       {"b1 hq2 hk1 sq300 sk500 scale(30) blocks(random,0.6,1,128x128,partial)",
        "causal b1 hq2 hk1 sq390 sk390 scale(30) blocks(random,0.9,2,128x128)"}) {
    expect_right<listed(hopper_forward(kBf16, 64, 128, 64, 2, 2))>(rest);
  }
  // More than a block remembers at once.
  constexpr auto kSmall = listed(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  Tensors many("fwd bf16 b3 hq50 hk5 sq64 sk256 d64 scale(30) blocks(random,0.6,3,64x64,b,h)", 7);
  run_listed<kSmall>(many.p, many.forward_args(), 1);
  expect_met(check_forward(many.p, many.forward_args()), "150 work tiles of one block");
}

// Blocks in no list are not read, nor what is behind the ends: all keys and values but those of
// the lists are NaN.
TEST(EmulatedHopperBlocks, WhatIsInNoListMayHoldAnything) {
  constexpr auto kConfig = listed(hopper_forward(kBf16, 64, 128, 64, 2, 2));
  const std::string line = "fwd bf16 b1 h1 sq384 sk448 d64 blocks(random,1,1,128x64,partial)";
  Tensors calm(line, 5), nan(line, 5);
  for (Tensors* t : {&calm, &nan}) {
    t->p.blocks->states = {kAll,  kNone, 0,     kNone, kNone, kAll,  kNone,  //
                           kNone, kNone, kNone, kNone, kNone, kNone, kNone,  //
                           kNone, kNone, 1,     kNone, kNone, kNone, kAll};
    t->blocks = BlockArrays(t->p);
  }
  for (const int block : {1, 3, 4}) {
    for (std::int64_t i = block * 64 * 64; i < (block + 1) * 64 * 64; ++i) {
      nan.set(nan.k, i, std::nanf(""));
      nan.set(nan.v, i, std::nanf(""));
    }
  }
  for (Tensors* t : {&calm, &nan}) run_listed<kConfig>(t->p, t->forward_args());
  expect_met(check_forward(calm.p, calm.forward_args()), line);
  EXPECT_TRUE(calm.o == nan.o);
  EXPECT_EQ(0, std::memcmp(calm.lse.data(), nan.lse.data(), 4 * nan.lse.size()));
  for (std::int64_t row = 128; row < 256; ++row) {  // sees nobody
    EXPECT_EQ(calm.lse[static_cast<std::size_t>(row)], -std::numeric_limits<float>::infinity());
    for (std::int64_t x = 0; x < 64; ++x) ASSERT_EQ(calm.at(calm.o, row * 64 + x), 0);
  }
}

// Kernels hide what is no block and no bitmap, and look at no memory for it.
TEST(EmulatedHopperBlocks, EntriesThatAreNoneAreHidden) {
  constexpr auto kConfig = listed(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  const std::string line = "fwd bf16 b1 h1 sq64 sk256 d64 blocks(random,1,1,64x64,partial)";
  Tensors right(line, 5), wrong(line, 5);
  right.p.blocks->states = {kAll, kNone, 0, kNone};
  wrong.p.blocks->states = {kAll, 1, 0, 1};
  for (Tensors* t : {&right, &wrong}) t->blocks = BlockArrays(t->p);
  wrong.blocks.kv_bitmaps[3] = 2;
  wrong.blocks.kv_counts[0] = 1000;
  run_listed<kConfig>(right.p, right.forward_args());
  for (const std::int32_t index : {1 << 30, -7, 4}) {
    wrong.blocks.kv_indices[1] = index;
    run_listed<kConfig>(wrong.p, wrong.forward_args());
    EXPECT_EQ(right.o, wrong.o) << index;
  }
  wrong.blocks.kv_counts[0] = -1;
  run_listed<kConfig>(wrong.p, wrong.forward_args());
  for (std::int64_t i = 0; i < wrong.count(wrong.o); ++i) ASSERT_EQ(wrong.at(wrong.o, i), 0);
}

// Where all blocks are listed and none has bits, it is the kernel without lists, bit by bit.
TEST(EmulatedHopperBlocks, BitsAreThoseOfTheKernelWithoutLists) {
  constexpr auto kPlain = hopper_forward(kBf16, 64, 128, 64, 2, 2);
  const std::string rest = "fwd bf16 b1 hq2 hk1 sq300 sk390 d64";
  Tensors t(rest + " blocks(random,1,1,128x128)", 7), plain(rest, 7);
  run_listed<listed(kPlain)>(t.p, t.forward_args());
  const Sm90ForwardArgs args =
      cuda::HopperForwardArgs(plain.p, kPlain).with(plain.forward_args(), 3);
  launch(3, forward_launches(plain.p, kPlain)[0].threads, [&] { sm90_forward<kPlain>(args); });
  EXPECT_TRUE(t.o == plain.o);
  EXPECT_EQ(0, std::memcmp(t.lse.data(), plain.lse.data(), 4 * t.lse.size()));
}

// The order: each work tile once, section by section, longer lists first.
TEST(EmulatedHopperBlocks, WorkTilesComeInTheOrderOfTheirLists) {
  constexpr auto kConfig = listed(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  for (const char* rest : {"", "causal "}) {
    Tensors t(std::string("fwd bf16 ") + rest +
                  "b2 hq6 hk3 sq900 sk1500 d64 blocks(random,0.5,3,64x64,b,h)",
              7);
    Workspace workspace(forward_workspace_bytes(t.p, kConfig));
    ForwardArgs pointers = t.forward_args();
    pointers.workspace = workspace.data();
    Sm90BlocksForwardArgs args = cuda::HopperForwardArgs(t.p, kConfig).blocks_with(pointers, 1);
    args.order.section = 5;
    launch(3, kBlockOrderThreads, [&] { block_order(args); });
    EXPECT_EQ(*args.order.taken, 0u);
    const int tiles = args.order.tiles, all = args.order.all();
    ASSERT_EQ(all, 12 * 15);
    std::vector<int> times(static_cast<std::size_t>(all));
    for (int n = 0; n < all; ++n) {
      const int work_tile = args.order.work_tiles[n];
      ASSERT_TRUE(work_tile >= 0 && work_tile < all);
      ++times[static_cast<std::size_t>(work_tile)];
      EXPECT_EQ(work_tile / tiles / 5, n / tiles / 5) << n;
      if (n % (5 * tiles) == 0) continue;
      EXPECT_LE(block_class(listed_blocks(args, args.order.work_tiles[n - 1])),
                block_class(listed_blocks(args, work_tile)));
    }
    EXPECT_EQ(std::ranges::count(times, 1), all);
  }
  for (int length = 0; length < 100000; ++length) {
    ASSERT_GE(block_class(length), block_class(length + 1));
  }
  EXPECT_EQ(block_class(0), kBlockClasses - 1);
  EXPECT_EQ(block_class((1 << 28) - 1), 0);
}

TEST(EmulatedHopperBlocks, RandomLists) {
  Dice dice(13);
  for (int n = 0; n < 24; ++n) {
    const std::string line = random_lists_line(dice, "bf16", "d64", 64);
    SCOPED_TRACE(line);
    Tensors t(line, static_cast<std::uint64_t>(n + 1));
    const WithTiming with(n % 2 == 0 ? kLate : kCrossed);
    run_listed<listed(hopper_forward(kBf16, 64, 64, 64, 3, 2))>(t.p, t.forward_args(), 2);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
}

TEST(EmulatedHopperBlocks, FaultsAreSeen) {
  const auto with = [](Timing asked, Deaf to) {
    return is_wrong(asked, to, [] {
      Tensors t("fwd bf16 causal b1 hq2 hk1 s390 d64 blocks(random,0.8,3,64x64,partial)", 7);
      run_listed<listed(hopper_forward(kBf16, 64, 64, 64, 2, 2))>(t.p, t.forward_args(), 1);
      return check_forward(t.p, t.forward_args());
    });
  };
  for (const Timing asked : {kEager, kLate, kCrossed}) EXPECT_FALSE(with(asked, {}));
  for (const Timing asked : {kLate, kCrossed}) EXPECT_TRUE(with(asked, {.phases = true}));
  EXPECT_TRUE(with(kLate, {.stores = true}));
}

TEST(EmulatedHopperBlocks, ListsThatDifferAreSeen) {
  constexpr auto kConfig = listed(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  const auto passes = [](const std::function<void(BlockArrays&)>& change) {
    Tensors t("fwd bf16 b1 hq2 hk1 sq200 sk333 d64 blocks(random,0.6,3,64x64,partial)", 7);
    const BlockArrays right = t.blocks;
    change(t.blocks);
    run_listed<kConfig>(t.p, t.forward_args());
    t.blocks = right;
    return check_forward(t.p, t.forward_args()).ok;
  };
  expect_other_lists_seen(
      {&BlockArrays::kv_counts, &BlockArrays::kv_indices, &BlockArrays::kv_bitmaps}, passes);
}

}  // namespace
}  // namespace dfa
