// Few queries of packed sequences with heads above 256 columns, dense or in pages, by Hopper's
// kernel: its own source on a processor, held against fp64 a sequence at a time.
#include "emulated/hopper_forward.h"
#include "emulated/split_pieces.h"
// and then:
#include "kernels/forward/combine_listed_splits.cuh"
#include "kernels/forward/sm90_sliced_split_forward.cuh"
#include "kernels/schedule/split_sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig split(DType element, int d, int dv, int pack_gqa, bool paged,
                              int logits = 0) {
  ForwardConfig c = with_logits(hopper_forward(element, d, 64, 64, 4, 1), logits);
  c.value_dim = dv;
  c.warps = 8;
  c.pack_gqa = pack_gqa;
  c.varlen = c.split_kv = true;
  c.paged = paged;
  return c;
}

// How keys are cut: into so many parts a head, or by a size.
struct Cut {
  int num_splits, split_keys = 0;
};

// The most splits that a tile of queries had.
template <ForwardConfig kConfig>
int run_split(const Problem& p, ForwardArgs pointers, Cut cut, unsigned blocks) {
  ForwardConfig config = kConfig;
  config.num_splits = cut.num_splits;
  config.split_keys = cut.split_keys;
  expect_legal(config, p);
  const std::vector<KernelLaunch> launches = forward_launches(p, config);
  Workspace workspace(forward_workspace_bytes(p, config));
  pointers.workspace = workspace.data();
  const cuda::HopperForwardArgs all(p, config);
  const SplitKvForwardArgs lists = all.split_lists(pointers);
  const Sm90SplitForwardArgs args = all.split_with(pointers, static_cast<int>(blocks));
  launch(launches[0].grid, launches[0].threads,
         [&] { split_sequence_tiles<true, kConfig.paged>(lists); });
  const int most = most_splits(args.splits, args.args.packed.tile_counts[0]);
  launch(blocks, launches[1].threads, [&] { sm90_sliced_split_forward<kConfig>(args); });
  launch(launches[2].grid, launches[2].threads, [&] { combine_listed_splits<kConfig>(args); });
  return most;
}

template <ForwardConfig kConfig>
void expect_right(const std::string& rest, Cut cut) {
  const std::string line = std::string("fwd ") + name_of(kConfig.element) + " " + rest;
  expect_right_and_same(line, [&](Tensors& t, unsigned blocks) {
    run_split<kConfig>(t.p, t.forward_args(), cut, blocks);
  });
}

// Lengths of none, one, a page and a row more or less, about those of tiles; queries up to more
// than a tile's; one split, a few, and more than there are tiles of keys.
TEST(EmulatedHopperSlicedSplit, PackedKeys) {
  constexpr auto kConfig = split(kBf16, 576, 512, 16, false);
  for (const int splits : {1, 3, 8}) {
    expect_right<kConfig>("causal hq16 hk1 lens(4,1,0,6,2) lens_k(450,1,9,64,65) d576 dv512",
                          {splits});
  }
  expect_right<kConfig>("hq32 hk1 lens(1,1,1) lens_k(0,700,63) d576 dv512", {5});
  expect_right<split(kFp16, 512, 512, 64, false)>("hq128 hk1 lens(1,2) lens_k(300,129) d512", {3});
  expect_right<split(kBf16, 384, 384, 3, false)>(
      "window(90,20) hq6 hk2 lens(20,1,9) lens_k(331,0,64) d264", {4});
}

// More than a warp joins at once.
TEST(EmulatedHopperSlicedSplit, ManySplitsOfOneSequence) {
  constexpr auto kConfig = split(kBf16, 384, 384, 1, false);
  const std::string line = "fwd bf16 h1 lens(1) lens_k(4500) d264 scale(3)";
  Tensors t(line, 7);
  EXPECT_GT(run_split<kConfig>(t.p, t.forward_args(), {36}, 3), 32);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

TEST(EmulatedHopperSlicedSplit, KeysInPages) {
  constexpr auto kConfig = split(kBf16, 576, 512, 16, true);
  for (const int page : {8, 16, 48, 64, 256}) {
    expect_right<kConfig>("causal hq16 hk1 lens(4,1,0,6) lens_k(450,1,9,66) d576 dv512 page(" +
                              std::to_string(page) + ")",
                          {4});
  }
  expect_right<split(kFp16, 512, 512, 64, true)>("hq64 hk1 lens(1,2) lens_k(300,129) d512 page(64)",
                                                 {3});
  expect_right<split(kBf16, 512, 384, 2, true)>(
      "window(40,9) hq4 hk2 lens(20,1,40) lens_k(331,0,64) d440 dv328 page(16)", {7});
  expect_right<split(kBf16, 576, 512, 1, true)>("b2 hq2 hk1 sq1 sk200 d576 dv512 page(64)", {2});
}

TEST(EmulatedHopperSlicedSplit, LogitsAndSinks) {
  expect_right<split(kBf16, 512, 512, 4, true, kSoftcap | kSink)>(
      "causal hq4 hk1 lens(7,1) lens_k(300,20) d512 page(16) softcap(4) sink", {3});
  expect_right<split(kBf16, 576, 512, 1, false, kAlibi | kSink)>(
      "causal hq2 hk1 lens(7,1) lens_k(300,20) d576 dv512 alibi sink", {3});
}

// Splits of a size that lengths of others do not change: a sequence has the bits that it has alone.
TEST(EmulatedHopperSlicedSplit, SplitsOfOneSize) {
  constexpr auto kConfig = split(kBf16, 576, 512, 16, true);
  const std::string rest = " d576 dv512 page(64) batch_invariant";
  Tensors among("fwd bf16 causal hq16 hk1 lens(5,3) lens_k(450,200)" + rest, 7),
      alone("fwd bf16 causal hq16 hk1 lens(5) lens_k(450)" + rest, 7);
  alone.q.assign(among.q.begin(), among.q.begin() + static_cast<std::ptrdiff_t>(alone.q.size()));
  const auto row = alone.p.k().row;
  for (std::int64_t i = 0; i < 450; ++i) {
    const std::int64_t from = among.row_in_pages(0, i) * row, to = alone.row_in_pages(0, i) * row;
    for (std::int64_t x = 0; x < row; ++x) alone.set(alone.k, to + x, among.at(among.k, from + x));
    const auto v_row = alone.p.v().row;
    const std::int64_t v_from = among.row_in_pages(0, i) * v_row,
                       v_to = alone.row_in_pages(0, i) * v_row;
    for (std::int64_t x = 0; x < v_row; ++x)
      alone.set(alone.v, v_to + x, among.at(among.v, v_from + x));
  }
  EXPECT_EQ(run_split<kConfig>(among.p, among.forward_args(), {5, 128}, 3), 4);
  EXPECT_EQ(run_split<kConfig>(alone.p, alone.forward_args(), {9, 128}, 2), 4);
  expect_met(check_forward(among.p, among.forward_args()), "splits of one size");
  for (std::int64_t x = 0; x < 5 * 16 * 512; ++x) {
    ASSERT_EQ(among.at(among.o, x), alone.at(alone.o, x)) << x;
  }
}

// The first lane of a warp may be phases ahead of its others.
TEST(EmulatedHopperSlicedSplit, LanesOfAnyWarpMayBeLate) {
  constexpr auto kConfig = split(kBf16, 576, 512, 16, false);
  const std::string line =
      "fwd bf16 causal hq16 hk1 lens(4,1,0,6,2) lens_k(450,1,9,0,65) d576 dv512";
  Tensors together(line, 5);
  run_split<kConfig>(together.p, together.forward_args(), {3}, 2);
  for (const int warp : {0, 4, 7, 8, 11}) {
    Tensors lanes(line, 5);
    const WithTiming with(late_lanes(warp));
    run_split<kConfig>(lanes.p, lanes.forward_args(), {3}, 2);
    EXPECT_TRUE(lanes.o == together.o) << warp;
  }
}

// MLA's cache: values are the first columns of the keys.
TEST(EmulatedHopperSlicedSplit, ValuesThatArePartOfKeys) {
  constexpr auto kConfig = split(kBf16, 576, 512, 16, true);
  Tensors t(
      "fwd bf16 causal hq16 hk1 lens(2,1) lens_k(150,70) d576 dv512 page(64) "
      "strides_v(36864,36864,576)",
      7);
  ForwardArgs pointers = t.forward_args();
  pointers.v = pointers.k;
  run_split<kConfig>(t.p, pointers, {3}, 2);
  expect_met(check_forward(t.p, pointers), "values in keys");
}

// Whatever tables and lengths say, nothing outside of the cache is read: entries that are no page
// read as zeros, and rows that the table has no column for are cut.
TEST(EmulatedHopperSlicedSplit, WildTablesReadNothingOutside) {
  constexpr auto kConfig = split(kBf16, 512, 512, 2, true);
  const std::string line = "fwd bf16 hq2 hk1 lens(5,5,5) lens_k(70,64,40) d512 page(16)";
  Tensors t(line, 4), alone(line, 4), none(line, 4);
  t.block_table[1] = 2000000000;
  t.block_table[2] = -7;
  t.block_table[3] = (1 << 28) + 1;  // times rows that is page 1 in 32 bits
  t.seqused_k[1] = 2000000000;
  run_split<kConfig>(t.p, t.forward_args(), {3, 64}, 2);
  std::fill_n(none.block_table.begin() + 1, 3, -1);
  run_split<kConfig>(none.p, none.forward_args(), {3, 64}, 2);
  EXPECT_EQ(0, std::memcmp(t.o.data(), none.o.data(), 5 * 2 * 512 * 2));
  run_split<kConfig>(alone.p, alone.forward_args(), {3, 64}, 2);
  for (std::int64_t i = 0; i < t.count(t.o); ++i) ASSERT_TRUE(std::isfinite(t.at(t.o, i))) << i;
  for (std::int64_t x = 10 * 1024; x < 15 * 1024; ++x) {
    ASSERT_EQ(t.at(t.o, x), alone.at(alone.o, x)) << x;
  }
}

}  // namespace
}  // namespace dfa
