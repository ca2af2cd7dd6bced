// Hopper's forward in e4m3 with factors of blocks of rows on a processor, held against fp64.
#include <functional>

#include "emulated/hopper_e4m3.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr ForwardConfig with_blocks(int dim, int block_q, int block_k, int stages,
                                    bool pingpong = false, int cluster = 1) {
  ForwardConfig config = hopper_e4m3(dim, block_q, block_k, stages, pingpong, cluster);
  config.descale_blocks = true;
  return config;
}

TEST(EmulatedHopperE4m3Blocks, OneWarpgroup) {
  constexpr auto kConfig = with_blocks(64, 64, 64, 2);
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h1 s1 d64 descale_rows(64)");
  expect_e4m3_right<kConfig>("fwd e4m3 causal b2 hq4 hk2 sq65 sk300 d64 descale_rows(64)");
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h1 sq130 sk400 d32 window(90,20) descale_rows(128)");
}

// The last warpgroup may have no query, and so no factor.
TEST(EmulatedHopperE4m3Blocks, TilesOfQueriesOverSeveralBlocks) {
  constexpr auto kConfig = with_blocks(64, 192, 64, 4);
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h2 sq100 sk130 d64 descale_rows(64)");
  expect_e4m3_right<kConfig>("fwd e4m3 causal b1 hq2 hk1 sq400 sk300 d64 descale_rows(64)");
}

TEST(EmulatedHopperE4m3Blocks, WarpgroupsThatTakeTurns) {
  constexpr auto kConfig = with_blocks(128, 128, 128, 4, true);
  expect_e4m3_right<kConfig>("fwd e4m3 causal b1 hq2 hk1 s400 d128 descale_rows(128)");
  expect_e4m3_right<kConfig>("fwd e4m3 b1 h2 sq150 sk700 d112 descale_rows(256) layout(bshd)");
  expect_e4m3_right<kConfig>("fwd e4m3 causal b1 h1 sq300 sk100 d128 descale_rows(128)");
}

// Of one block any tile of keys is a part.
TEST(EmulatedHopperE4m3Blocks, OneBlockThatTilesDoNotDivide) {
  expect_e4m3_right<with_blocks(64, 128, 96, 2)>("fwd e4m3 b2 h1 sq70 sk250 d64 descale_rows(256)");
  expect_e4m3_right<with_blocks(64, 128, 96, 2)>("fwd e4m3 b1 h2 sq70 sk128 d64 descale_rows(128)");
  expect_e4m3_right<with_blocks(64, 128, 96, 2)>(
      "fwd e4m3 b1 h2 sq70 sk250 d64 descale_rows(1099511627776)");
}

#ifdef DFA_EVERY_CASE
TEST(EmulatedHopperE4m3Blocks, WideHeadsInParts) {
  expect_e4m3_right<with_blocks(256, 128, 64, 2)>(
      "fwd e4m3 causal b1 hq2 hk1 sq150 sk200 d256 descale_rows(64)");
  expect_e4m3_right<with_blocks(192, 128, 96, 2)>(
      "fwd e4m3 b1 h2 sq140 sk500 d192 descale_rows(192)");
  expect_e4m3_right<with_blocks(192, 128, 64, 2)>(
      "fwd e4m3 b1 h2 sq140 sk300 d192 window(100,50) descale_rows(64)");
}

TEST(EmulatedHopperE4m3Blocks, PairsThatCopyTogether) {
  expect_e4m3_right<with_blocks(256, 128, 64, 2, true, 2)>(
      "fwd e4m3 causal b1 h3 s300 d256 descale_rows(64)");
}
#endif

// Rows of a warpgroup are of few queries then.
TEST(EmulatedHopperE4m3Blocks, HeadsOfAQueryAreNeighbouringRows) {
  expect_e4m3_right<packing(with_blocks(64, 128, 64, 4), 4)>(
      "fwd e4m3 causal b2 hq8 hk2 sq150 sk330 d64 descale_rows(64)");
}

using Change = std::function<float(float, std::size_t)>;  // of a factor and its place

template <ForwardConfig kConfig>
void expect_right_of(const std::string& line, std::vector<float> HostDescales::*of,
                     const Change& change) {
  Tensors t(line, 5);
  std::vector<float>& factors = t.factors.*of;
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = change(factors[i], i);
  run_e4m3<kConfig>(t, kCrossed);
  expect_met(check_forward(t.p, t.forward_args()), line);
}

// Neighbouring blocks a thousandfold apart, blocks of zeros alone, and of a sign of their own.
TEST(EmulatedHopperE4m3Blocks, FactorsOfEveryKind) {
  constexpr auto kConfig = with_blocks(64, 128, 64, 2);
  const Change apart = [](float x, std::size_t i) { return i % 2 == 0 ? x : 1000 * x; };
  const Change closer = [](float x, std::size_t i) { return i % 2 == 0 ? x : x / 1000; };
  const Change zero = [](float x, std::size_t i) { return i % 3 == 1 ? 0 : x; };
  const Change zeros = [](float, std::size_t) { return 0.f; };
  const Change turned = [](float x, std::size_t i) { return i % 3 == 0 ? -x : x; };
  for (auto of : {&HostDescales::q, &HostDescales::k, &HostDescales::v}) {
    for (const Change& change : {apart, closer, zero, zeros, turned}) {
      for (const char* line : {"fwd e4m3 causal b2 hq4 hk2 sq190 sk250 d64 descale_rows(64)",
                               "fwd e4m3 b1 h1 sq70 sk500 d64 scale(-0.2) descale_rows(128)"}) {
        expect_right_of<kConfig>(line, of, change);
      }
    }
  }
}

// One for all blocks of rows, or none.
TEST(EmulatedHopperE4m3Blocks, BlocksMayShareAFactor) {
  constexpr auto kConfig = with_blocks(64, 128, 64, 2);
  const std::string line = "fwd e4m3 causal b2 hq4 hk2 sq130 sk300 d64 descale_rows(64)";
  for (const bool given : {true, false}) {
    Tensors t(line, 5);
    ForwardArgs args = t.forward_args();
    for (Descale* one : {&args.descales.q, &args.descales.k, &args.descales.v}) {
      one->block = 0;
      if (!given) *one = {};
    }
    Workspace workspace = packed_values<kConfig>(t);
    run_packed<kConfig>(t, workspace, args.descales, kCrossed);
    expect_met(check_forward(t.p, args), line);
  }
}

// The comparison with fp64 sees what this kernel could get wrong.
constexpr auto kFaulty = with_blocks(64, 128, 64, 2);
constexpr const char* kFaultyLine = "fwd e4m3 b2 hq4 hk2 sq190 sk300 d64 descale_rows(64)";

bool is_right(Descale Descales::*of, const std::function<void(Descale&)>& change) {
  Tensors t(kFaultyLine, 5);
  Workspace workspace = packed_values<kFaulty>(t);
  Descales wrong = t.forward_args().descales;
  change(wrong.*of);
  run_packed<kFaulty>(t, workspace, wrong, kEager);
  return check_forward(t.p, t.forward_args()).ok;
}

TEST(EmulatedHopperE4m3BlocksFaults, FactorsOfOtherBlocksAndHeads) {
  EXPECT_TRUE(is_right(&Descales::q, [](Descale&) {}));
  for (Descale Descales::*of : {&Descales::q, &Descales::k, &Descales::v}) {
    EXPECT_FALSE(is_right(of, [](Descale& d) { d = {}; }));
    EXPECT_FALSE(is_right(of, [](Descale& d) { d.block = 0; }));
    EXPECT_FALSE(is_right(of, [](Descale& d) { d.head = 0; }));
    EXPECT_FALSE(is_right(of, [](Descale& d) { d.batch = 0; }));
  }
}

// A product that is added by the factor of its neighbour.
TEST(EmulatedHopperE4m3BlocksFaults, FactorsOfTheTileBeside) {
  for (Descale Descales::*of : {&Descales::k, &Descales::v}) {
    Tensors t(kFaultyLine, 5);
    Workspace workspace = packed_values<kFaulty>(t);
    std::vector<float> HostDescales::*host =
        of == &Descales::k ? &HostDescales::k : &HostDescales::v;
    const HostDescales right = t.factors;
    std::rotate((t.factors.*host).begin(), (t.factors.*host).begin() + 1, (t.factors.*host).end());
    run_packed<kFaulty>(t, workspace, t.forward_args().descales, kEager);
    t.factors = right;
    EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
  }
}

}  // namespace
}  // namespace dfa
