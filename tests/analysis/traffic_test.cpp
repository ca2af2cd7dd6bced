#include "analysis/traffic.h"

#include <gtest/gtest.h>

#include "analysis/memory.h"
#include "analysis/tiles.h"
#include "dfa/error.h"

namespace dfa::analysis {
namespace {

ForwardConfig forward_tile(const Problem& p, int block_q, int block_k) {
  return {.element = p.dtype,
          .head_dim = static_cast<int>(p.d),
          .value_dim = static_cast<int>(p.dv),
          .block_q = block_q,
          .block_k = block_k};
}

BackwardConfig backward_tile(const Problem& p, int block_q, int block_k) {
  return {.element = p.dtype,
          .head_dim = static_cast<int>(p.d),
          .value_dim = static_cast<int>(p.dv),
          .block_q = block_q,
          .block_k = block_k};
}

// b 2, hq 4, hk 2, sq 8, sk 16, d 8, dv 24, fp16.
const char* const kUneven = "fwdbwd fp16 b2 hq4 hk2 sq8 sk16 d8 dv24";
constexpr double kQ = 2 * 4 * 8 * 8 * 2, kK = 2 * 2 * 16 * 8 * 2, kV = 2 * 2 * 16 * 24 * 2;
constexpr double kO = 2 * 4 * 8 * 24 * 2, kS = 2 * 4 * 8 * 16 * 2, kRow = 2 * 4 * 8 * 4;

TEST(StandardTraffic, CountsEveryPassByHand) {
  const Problem p = parse_problem(kUneven);
  EXPECT_EQ(standard_forward(p).read_bytes(), kQ + kK + kS + kS + kV);
  EXPECT_EQ(standard_forward(p).write_bytes(), kS + kS + kO);
  EXPECT_EQ(standard_backward(p).bytes(), kQ + kK + kV + 2 * kO + kV + kK + kQ + 7 * kS);
}

TEST(StandardTraffic, MaskAndDropoutAddTheirPasses) {
  const Problem p = parse_problem(kUneven);
  const double plain = standard_forward(p).bytes();
  EXPECT_EQ(standard_forward(p, {.additive_mask = true}).bytes() - plain, 2 * kS);
  EXPECT_EQ(standard_forward(p, {.dropout = true}).bytes() - plain, 2.5 * kS);
  EXPECT_EQ(standard_backward(p, {.dropout = true}).bytes() - standard_backward(p).bytes(),
            2.5 * kS);
}

TEST(FlashTraffic, WithACacheEveryTensorTravelsOnce) {
  const Problem p = parse_problem(kUneven);
  EXPECT_EQ(flash_forward(p, forward_tile(p, 4, 4), Reread::cache).bytes(),
            kQ + kK + kV + kO + kRow);
  const double sums = 2 * kQ;  // fp32
  EXPECT_EQ(flash_backward(p, backward_tile(p, 4, 4), Reread::cache).bytes(),
            (2 * kO + kRow) + (kK + kV) + (kQ + kO + 2 * kRow) + sums + (sums + kQ) + (kK + kV));
}

TEST(FlashTraffic, WithoutACacheKeysTravelOncePerQueryBlockOfEveryQueryHead) {
  const Problem p = parse_problem(kUneven);
  const double kv_of_query_heads = 2 * (kK + kV);  // two query heads read each key head
  const double rest = kQ + kO + kRow;
  EXPECT_EQ(flash_forward(p, forward_tile(p, 4, 4), Reread::memory).bytes(),
            rest + 2 * kv_of_query_heads);
  EXPECT_EQ(flash_forward(p, forward_tile(p, 8, 4), Reread::memory).bytes(),
            rest + kv_of_query_heads);
}

TEST(FlashTraffic, BackwardWalksQueriesOncePerKeyBlock) {
  const Problem p = parse_problem(kUneven);
  const double once = flash_backward(p, backward_tile(p, 8, 16), Reread::memory).bytes();
  EXPECT_EQ(once, flash_backward(p, backward_tile(p, 8, 16), Reread::cache).bytes());
  const double sums = 2 * kQ;
  EXPECT_EQ(flash_backward(p, backward_tile(p, 8, 4), Reread::memory).bytes() - once,
            3 * (kQ + kO + 2 * kRow + 2 * sums));
}

TEST(FlashTraffic, ACausalSquareOfManyTilesReadsHalfTheKeysAndADiagonal) {
  const Problem full = parse_problem("fwd bf16 h1 s1024 d64");
  const Problem causal = parse_problem("fwd bf16 causal h1 s1024 d64");
  const auto keys = [](const Problem& p) {
    return flash_forward(p, forward_tile(p, 64, 64), Reread::memory).steps[1].read_bytes;
  };
  EXPECT_EQ(keys(causal) / keys(full), (16.0 * 17 / 2) / (16 * 16));
}

TEST(FlashTraffic, KeysThatNoQuerySeesAreNotRead) {
  const Problem p = parse_problem("fwd fp32 h1 sq4 sk64 d8 window(3,0)");
  // Queries 0..3 stand at keys 60..63 and look 3 back: keys 57..63.
  EXPECT_EQ(flash_forward(p, forward_tile(p, 4, 1), Reread::memory).steps[1].read_bytes,
            7.0 * 16 * 4);
  EXPECT_EQ(flash_forward(p, forward_tile(p, 4, 1), Reread::cache).steps[1].read_bytes,
            7.0 * 16 * 4);
}

// 8 MiB of bias for 2 batches; its gradient has 4 bytes an element.
TEST(FlashTraffic, ABiasIsReadWhereItsTilesAreVisited) {
  constexpr double kBias = 8 << 20;
  const auto bytes = [](const std::string& rest, Reread reread) {
    const Problem plain = parse_problem("fwdbwd bf16 b2 h4 s1024 d64" + rest);
    Problem p = plain;
    p.bias = Bias{.of_head = true, .dtype = DType::bf16};
    const auto forward = forward_tile(p, 64, 64);
    const auto backward = backward_tile(p, 64, 64);
    return std::pair(
        flash_forward(p, forward, reread).bytes() - flash_forward(plain, forward, reread).bytes(),
        flash_backward(p, backward, reread).bytes() -
            flash_backward(plain, backward, reread).bytes());
  };
  constexpr double kCausal = (16.0 * 17 / 2) / (16 * 16);
  EXPECT_EQ(bytes("", Reread::cache), std::pair(kBias, 3 * kBias));
  EXPECT_EQ(bytes("", Reread::memory), std::pair(2 * kBias, 4 * kBias));
  EXPECT_EQ(bytes(" causal", Reread::memory),
            std::pair(2 * kBias * kCausal, 2 * kBias * kCausal + 2 * kBias));
}

TEST(FlashTraffic, OneRowOfBiasForAllQueriesIsReadForEveryBlockOfThem) {
  Problem p = parse_problem("fwd bf16 h4 s1024 d64");
  const auto tile = forward_tile(p, 64, 64);
  const double plain = flash_forward(p, tile, Reread::memory).bytes();
  p.bias = Bias{.of_query = false, .dtype = DType::fp32};
  EXPECT_EQ(flash_forward(p, tile, Reread::memory).bytes() - plain, 4 * 16 * 1024 * 4.0);
  EXPECT_EQ(flash_forward(p, tile, Reread::cache).steps.back().read_bytes, 1024 * 4.0);
}

TEST(StandardTraffic, ABiasAddsAPassAndItsGradientAnother) {
  const Problem plain = parse_problem("fwdbwd bf16 b2 h4 s1024 d64");
  Problem p = plain;
  p.bias = Bias{.dtype = DType::fp32};
  constexpr double kScores = 16 << 20, kOne = 4 << 20;
  EXPECT_EQ(standard_forward(p).bytes() - standard_forward(plain).bytes(), 2 * kScores + kOne);
  EXPECT_EQ(standard_backward(p).bytes() - standard_backward(plain).bytes(), kScores + kOne);
}

TEST(FlashTraffic, LargerBlocksNeverMoveMore) {
  const Problem p = parse_problem("fwdbwd bf16 causal h2 s1000 d64");
  double forward = 1e30, backward = 1e30;
  for (const int block : {16, 32, 64, 128, 256, 512}) {
    const double f = flash_forward(p, forward_tile(p, block, 64), Reread::memory).bytes();
    const double b = flash_backward(p, backward_tile(p, 64, block), Reread::memory).bytes();
    EXPECT_LT(f, forward);
    EXPECT_LT(b, backward);
    forward = f;
    backward = b;
  }
}

TEST(FlashTraffic, TheCacheKeepsWhatFitsIt) {
  Machine machine;
  machine.cache_bytes = 1 << 20;
  machine.units = 4;
  const Problem p = parse_problem("fwdbwd bf16 h1 s1024 d64");  // k and v: 256 KiB
  EXPECT_EQ(reread_of(p, forward_tile(p, 64, 64), machine), Reread::cache);
  EXPECT_EQ(reread_of(p, backward_tile(p, 64, 64), machine), Reread::cache);
  machine.cache_bytes = 1 << 17;
  EXPECT_EQ(reread_of(p, forward_tile(p, 64, 64), machine), Reread::memory);
  EXPECT_EQ(reread_of(p, backward_tile(p, 64, 64), machine), Reread::memory);
}

TEST(IoComplexity, IsTheTheoremsTwoFormulas) {
  const IoComplexity io = io_complexity(parse_problem("fwd fp16 b2 h3 s1024 d64"), 65536);
  EXPECT_EQ(io.sram_elements, 32768);
  EXPECT_EQ(io.standard, 6.0 * (1024 * 64 + 1024 * 1024));
  EXPECT_EQ(io.flash, 6.0 * 1024 * 1024 * 64 * 64 / 32768);
  EXPECT_TRUE(io.in_range);
  EXPECT_FALSE(io_complexity(parse_problem("fwd fp16 h1 s64 d64"), 65536).in_range);
  EXPECT_THROW(io_complexity(parse_problem("fwd fp16 h1 s64 d64"), 0), InvalidArgument);
}

TEST(Tiles, EveryTileFitsAndTheNextOneDoesNot) {
  const Problem p = parse_problem("fwd bf16 h1 s4096 d64");
  constexpr std::int64_t kSram = 96 << 10;
  const auto tiles = fitting_tiles(p, kSram);
  ASSERT_FALSE(tiles.empty());
  for (const Tile& tile : tiles) {
    // scores and output in fp32, q, k and v in bf16
    const auto bytes = [&](int block_k) {
      return 4LL * tile.block_q * (block_k + 64) + 2LL * 64 * (tile.block_q + 2 * block_k);
    };
    EXPECT_EQ(tile.tile_bytes, bytes(tile.block_k));
    EXPECT_LE(tile.tile_bytes, kSram);
    if (tile.block_k < 512) {
      EXPECT_GT(bytes(tile.block_k * 2), kSram);
    }
  }
}

TEST(Tiles, TheChosenTileFitsAndMoreSramNeverMakesItsShorterSideShorter) {
  const Problem p = parse_problem("fwdbwd bf16 h1 s4096 d128");
  int before = 0;
  for (const std::int64_t sram : {64 << 10, 128 << 10, 256 << 10, 512 << 10}) {
    const ForwardConfig config = best_forward(p, sram);
    EXPECT_LE(config.tile_bytes(), sram);
    EXPECT_GE(std::min(config.block_q, config.block_k), before);
    before = std::min(config.block_q, config.block_k);
    EXPECT_LE(best_backward(p, sram).tile_bytes(), sram);
  }
  EXPECT_TRUE(fitting_tiles(p, 1024).empty());
  EXPECT_THROW(best_forward(p, 1024), InvalidArgument);
  EXPECT_THROW(best_backward(p, 1024), InvalidArgument);
}

TEST(Tiles, EveryHeadDimAndElementHasATileOnTheSmallestMachine) {
  const std::int64_t sram = machines_named("t4").front().sram_bytes;
  for (const char* line : {"fwd fp32 h1 s4096 d256", "fwd bf16 h1 s4096 d256"}) {
    EXPECT_LE(best_forward(parse_problem(line), sram).tile_bytes(), sram);
    EXPECT_LE(best_backward(parse_problem(line), sram).tile_bytes(), sram);
  }
}

TEST(Tiles, OneQueryGetsTheLeastBlockOfQueries) {
  EXPECT_EQ(best_forward(parse_problem("fwd bf16 h1 sq1 sk4096 d64"), 1 << 18).block_q, 8);
}

TEST(Tiles, ThePaperRuleIsByHand) {
  // M = 49152 fp16 elements, 4 d = 256: Bc = 192, Br = min(192, 64).
  const PaperTile tile = paper_tile(parse_problem("fwd fp16 h1 s64 d64"), 98304);
  EXPECT_EQ(tile.block_k, 192);
  EXPECT_EQ(tile.block_q, 64);
}

TEST(Footprint, CountsByHand) {
  const Problem p = parse_problem(kUneven);
  EXPECT_EQ(footprint(p, Algorithm::standard).total(), 2 * (kQ + kK + kV) + 2 * kO + 2 * kS);
  EXPECT_EQ(footprint(p, Algorithm::flash).total(),
            2 * (kQ + kK + kV) + 2 * kO + 2 * kRow + 2 * kQ);
  Problem forward = p;
  forward.pass = Pass::forward;
  EXPECT_EQ(footprint(forward, Algorithm::standard).total(), kQ + kK + kV + kO + 2 * kS);
  EXPECT_EQ(footprint(forward, Algorithm::flash).total(), kQ + kK + kV + kO + kRow);
  Problem backward = p;
  backward.pass = Pass::backward;
  EXPECT_EQ(footprint(backward, Algorithm::standard).total(),
            footprint(p, Algorithm::standard).total() - kO);
  EXPECT_EQ(footprint(backward, Algorithm::flash).total(), footprint(p, Algorithm::flash).total());
  EXPECT_THROW(footprint(p, Algorithm::automatic), InvalidArgument);
}

TEST(Footprint, FlashIsLinearAndStandardQuadraticInTheLength) {
  const Problem p = parse_problem("fwd bf16 h8 s1 d64");
  const auto at = [&](std::int64_t length, Algorithm algorithm) {
    return footprint(with_length(p, length), algorithm).total();
  };
  EXPECT_EQ(at(8192, Algorithm::flash), 8 * at(1024, Algorithm::flash));
  EXPECT_GT(at(65536, Algorithm::standard), 60 * at(8192, Algorithm::standard));
}

TEST(Footprint, TheLongestLengthFitsAndOneMoreDoesNot) {
  const Problem p = parse_problem("fwdbwd bf16 causal b4 hq8 hk2 s1 d64");
  for (const Algorithm algorithm : {Algorithm::standard, Algorithm::flash}) {
    const std::int64_t length = longest_length(p, algorithm, 16e9);
    EXPECT_LE(footprint(with_length(p, length), algorithm).total(), 16e9);
    EXPECT_GT(footprint(with_length(p, length + 1), algorithm).total(), 16e9);
  }
  EXPECT_EQ(longest_length(p, Algorithm::flash, 1), 0);
}

}  // namespace
}  // namespace dfa::analysis
