// Keys and values in pages by Hopper's own forward: its source on a processor, held against fp64 a
// sequence at a time. Pages lie in no order, and what is of no sequence is NaN (Tensors).
#include "emulated/deaf.h"
#include "emulated/hopper_forward.h"
#include "plan/select.h"
#include "random_lines.h"
#include "spec/config_text.h"
// and then:
#include "kernels/forward/sm90_paged_forward.cuh"
#include "kernels/schedule/paged_sequence_tiles.cuh"

namespace dfa {
namespace {

using namespace emulated;

constexpr auto kBf16 = DType::bf16, kFp16 = DType::fp16;

constexpr ForwardConfig paged(ForwardConfig config, int logits = 0) {
  config.varlen = config.paged = true;
  return with_logits(config, logits);
}

template <ForwardConfig kConfig>
void run_paged(const Problem& p, ForwardArgs pointers, unsigned blocks = 3) {
  const Verdict legal = validate_config(kConfig, p, gpu_limits(90));
  ASSERT_TRUE(legal) << legal.reason;
  const auto launches = forward_launches(p, kConfig);
  Workspace workspace(forward_workspace_bytes(p, kConfig));
  pointers.workspace = workspace.data();
  const Sm90PagedForwardArgs args =
      cuda::HopperForwardArgs(p, kConfig).paged_with(pointers, static_cast<int>(blocks));
  launch(launches[0].grid, launches[0].threads, [&] { paged_sequence_tiles(args.args); });
  launch(blocks, launches[1].threads, [&] { sm90_paged_forward<kConfig>(args); });
}

template <ForwardConfig kConfig>
void expect_right(const std::string& rest) {
  expect_right_and_same(forward_line<kConfig>(rest), [](Tensors& t, unsigned blocks) {
    run_paged<kConfig>(t.p, t.forward_args(), blocks);
  });
}

// Lengths of none, one, a page and a row more or less, about those of tiles; pages that are parts
// of a tile, as long, and longer; heads first.
constexpr const char* kLines[] = {
    "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0) page(16)",
    "hq2 hk1 lens(33,128,5,20,7) lens_k(64,3,200,63,65) page(64)",
    "window(40,9) hq2 hk2 lens(100,0,64,17) lens_k(257,30,255,16) page(256)",
    "causal b3 hq4 hk1 sq40 sk90 page(8)",
    "causal hq2 hk2 lens(90,40) lens_k(300,47) page(48)",
};

TEST(EmulatedHopperPaged, EveryMaskAndSizeOfPages) {
  for (const char* rest : kLines) {
    expect_right<paged(hopper_forward(kBf16, 64, 128, 64, 2, 2))>(rest);
    expect_right<paged(hopper_forward(kFp16, 128, 64, 64, 2, 1))>(rest);
  }
  constexpr auto kHeld = [] {
    ForwardConfig c = paged(hopper_forward(kBf16, 128, 128, 64, 2, 2));
    c.q_columns_in_regs = 128;
    return c;
  };
  expect_right<kHeld()>(kLines[0]);
  expect_right<paged(hopper_forward(kBf16, 128, 64, 80, 2, 2))>(kLines[0]);
  expect_right<paged(hopper_forward(kBf16, 128, 64, 80, 3, 1))>(kLines[1]);
  expect_right<paged(hopper_forward(kBf16, 64, 64, 128, 2, 2, true))>(kLines[2]);
  expect_right<paged(hopper_forward(kBf16, 256, 64, 64, 2, 1))>(kLines[0]);
}

TEST(EmulatedHopperPaged, ChunksAndPrefixes) {
  constexpr auto kConfig = ranges(paged(hopper_forward(kBf16, 64, 128, 64, 2, 2)));
  expect_right<kConfig>("chunk(50) " + std::string(kLines[0]));
  expect_right<kConfig>("prefix(40) causal " + std::string(kLines[1]));
}

TEST(EmulatedHopperPaged, LogitsThatAreNotPlain) {
  constexpr int kAll = kSoftcap | kAlibi | kSink;
  for (const char* rest : {kLines[0], kLines[2]}) {
    expect_right<paged(hopper_forward(kBf16, 64, 128, 64, 2, 2), kAll)>(rest + said_of(kAll));
    expect_right<paged(hopper_forward(kBf16, 64, 64, 64, 2, 1), kSink)>(rest + said_of(kSink));
  }
}

// Values that leave the range of a first tile's reference: a work tile is done again.
TEST(EmulatedHopperPaged, TilesThatAreDoneAgain) {
  expect_right<paged(hopper_forward(kBf16, 64, 128, 64, 2, 2))>(
      "causal hq2 hk1 lens(150,70) lens_k(290,70) page(16) scale(30)");
}

// As servers lay keys and values side by side in a page, or heads first.
TEST(EmulatedHopperPaged, PagesThatLieApart) {
  expect_right<paged(hopper_forward(kBf16, 64, 64, 64, 2, 2))>(
      "causal hq2 hk2 lens(70,9) lens_k(90,30) page(16) strides_k(4096,64,128) "
      "strides_v(8192,1024,64)");
}

// One cache, in pages that another sequence's table has in another order, the first of which are
// shared; who reads rows that are not its own has other numbers.
TEST(EmulatedHopperPaged, SharedPagesAndTablesInAnyOrder) {
  constexpr auto kConfig = paged(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  Tensors t("fwd bf16 causal hq2 hk1 lens(40,70,33) lens_k(150,150,97) d64 page(16)", 7);
  const auto columns = static_cast<std::size_t>(t.p.table_columns());
  for (std::size_t n = 0; n < 6; ++n) {
    t.block_table[columns + n] = t.block_table[n];
    t.block_table[2 * columns + 5 - n] = t.block_table[n];
  }
  run_paged<kConfig>(t.p, t.forward_args());
  expect_met(check_forward(t.p, t.forward_args()), "shared pages");
}

// A table wider than the cache has pages, one page, and rows of q that are of no sequence.
TEST(EmulatedHopperPaged, OnePageAndRowsOfNoSequence) {
  constexpr auto kConfig = paged(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  Tensors t("fwd bf16 causal b3 hq4 hk2 sq20 sk70 d64 page(16)", 4);
  const std::vector<std::int32_t> used_q{20, 13, 0};
  ForwardArgs pointers = t.forward_args();
  pointers.sequences.seqused_q = used_q.data();
  run_paged<kConfig>(t.p, pointers);
  expect_met(check_forward(t.p, pointers), "rows of no sequence");
  for (std::int64_t x = 33 * 256; x < 60 * 256; ++x) ASSERT_EQ(t.at(t.o, x), 0) << x;
  Tensors one("fwd bf16 hq2 hk1 lens(20) lens_k(13) d64 page(16)", 4);
  run_paged<kConfig>(one.p, one.forward_args());
  expect_met(check_forward(one.p, one.forward_args()), "one page");
}

// Whatever tables and lengths say, nothing outside of the cache is read, and others' rows are
// right: entries that are no page read as zeros, and rows that the table has no column for are cut.
TEST(EmulatedHopperPaged, WildTablesReadNothingOutside) {
  constexpr auto kConfig = paged(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  const std::string line = "fwd bf16 hq2 hk1 lens(50,50,50) lens_k(70,64,40) d64 page(16)";
  Tensors t(line, 4), alone(line, 4);
  t.block_table[1] = 2000000000;
  t.block_table[2] = -7;
  t.block_table[3] = (1 << 28) + 1;  // times rows that is page 1 in 32 bits
  t.seqused_k[1] = 2000000000;
  run_paged<kConfig>(t.p, t.forward_args());
  run_paged<kConfig>(alone.p, alone.forward_args());
  Tensors none(line, 4);
  std::fill_n(none.block_table.begin() + 1, 3, -1);
  run_paged<kConfig>(none.p, none.forward_args());
  EXPECT_EQ(0, std::memcmp(t.o.data(), none.o.data(), 50 * 256));
  for (std::int64_t i = 0; i < t.count(t.o); ++i) ASSERT_TRUE(std::isfinite(t.at(t.o, i))) << i;
  for (std::int64_t x = 100 * 128; x < 150 * 128; ++x) {
    ASSERT_EQ(t.at(t.o, x), alone.at(alone.o, x)) << x;
  }
}

// Keys with no page behind the end of its own are as those that lie one after the other.
TEST(EmulatedHopperPaged, BitsAreThoseOfPackedKeys) {
  constexpr auto kPaged = paged(hopper_forward(kBf16, 64, 128, 64, 2, 2));
  constexpr ForwardConfig kPacked = [] {
    ForwardConfig c = hopper_forward(kBf16, 64, 128, 64, 2, 2);
    c.varlen = true;
    return c;
  }();
  const std::string rest = "fwd bf16 causal hq4 hk2 lens(70,1,130,65) lens_k(150,1,129,64) d64";
  Tensors t(rest + " page(16)", 7), packed(rest, 7);
  for (std::size_t i = 0; i < t.p.lens_k.size(); ++i) {
    for (std::int64_t row = 0; row < t.p.lens_k[i]; ++row) {
      const std::int64_t from = t.row_in_pages(static_cast<std::int64_t>(i), row) * t.p.k().row;
      const std::int64_t to = (packed.cu_seqlens_k[i] + row) * packed.p.k().row;
      for (std::int64_t x = 0; x < t.p.k().row; ++x) {
        packed.set(packed.k, to + x, t.at(t.k, from + x));
        packed.set(packed.v, to + x, t.at(t.v, from + x));
      }
    }
  }
  run_paged<kPaged>(t.p, t.forward_args());
  Workspace workspace(forward_workspace_bytes(packed.p, kPacked));
  ForwardArgs pointers = packed.forward_args();
  pointers.workspace = workspace.data();
  const Sm90ForwardArgs args = cuda::HopperForwardArgs(packed.p, kPacked).with(pointers, 3);
  const auto launches = forward_launches(packed.p, kPacked);
  launch(launches[0].grid, launches[0].threads, [&] { list_sequence_tiles<false>(args.args); });
  launch(3, launches[1].threads, [&] { sm90_forward<kPacked>(args); });
  EXPECT_TRUE(t.o == packed.o);
  EXPECT_EQ(0, std::memcmp(t.lse.data(), packed.lse.data(), 4 * t.lse.size()));
}

// A thread block that is done takes one number beyond the last work tile, none ahead of that: what
// is taken early is left to a block when others have nothing to do.
TEST(EmulatedHopperPaged, NoWorkTileIsTakenAhead) {
  constexpr auto kConfig = paged(hopper_forward(kBf16, 64, 64, 64, 2, 2));
  constexpr int kBlocks = 3, kHeads = 2, kTiles = 5;  // of 64 queries: three, and two
  Tensors t("fwd bf16 causal hq2 hk1 lens(150,70) lens_k(290,70) d64 page(16)", 7);
  Workspace workspace(forward_workspace_bytes(t.p, kConfig));
  ForwardArgs pointers = t.forward_args();
  pointers.workspace = workspace.data();
  const auto launches = forward_launches(t.p, kConfig);
  const Sm90PagedForwardArgs args =
      cuda::HopperForwardArgs(t.p, kConfig).paged_with(pointers, kBlocks);
  launch(launches[0].grid, launches[0].threads, [&] { paged_sequence_tiles(args.args); });
  launch(kBlocks, launches[1].threads, [&] { sm90_paged_forward<kConfig>(args); });
  EXPECT_EQ(args.args.packed.tile_counts[0], kTiles);
  EXPECT_EQ(args.args.packed.tile_counts[2], kTiles * kHeads + kBlocks);
}

TEST(EmulatedHopperPaged, RandomPrompts) {
  Dice dice(11);
  for (int n = 0; n < 16; ++n) {
    const std::string line = random_prompts_line(dice, "bf16", "d64");
    Tensors t(line, static_cast<std::uint64_t>(n + 1));
    const WithTiming with(n % 2 == 0 ? kLate : kCrossed);
    run_paged<paged(hopper_forward(kBf16, 64, 128, 64, 3, 2))>(t.p, t.forward_args(), 2);
    expect_met(check_forward(t.p, t.forward_args()), line);
  }
}

TEST(EmulatedHopperPaged, FaultsAreSeen) {
  const auto with = [](Timing asked, Deaf to) {
    return is_wrong(asked, to, [] {
      Tensors t("fwd bf16 causal hq2 hk1 lens(70,40) lens_k(300,90) d64 page(16)", 7);
      run_paged<paged(hopper_forward(kBf16, 64, 64, 64, 2, 2))>(t.p, t.forward_args(), 1);
      return check_forward(t.p, t.forward_args());
    });
  };
  for (const Timing asked : {kEager, kLate, kCrossed}) EXPECT_FALSE(with(asked, {}));
  for (const Timing asked : {kLate, kCrossed}) EXPECT_TRUE(with(asked, {.phases = true}));
  EXPECT_TRUE(with(kLate, {.stores = true}));
}

}  // namespace
}  // namespace dfa
