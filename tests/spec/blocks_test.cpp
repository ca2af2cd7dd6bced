#include "spec/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "dfa/error.h"
#include "spec/block_lists.h"
#include "spec/block_tiles.h"
#include "spec/flops.h"
#include "temp_dir.h"

namespace dfa {
namespace {

constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;

std::string refused_blocks(const std::string& blocks, const std::string& sizes = "b1 h2 s64 d16") {
  try {
    parse_problem("fwd fp32 " + sizes + " blocks(" + blocks + ")");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class BlockFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = (folder_.path() / "blocks.txt").string();
    std::ofstream(path) << text;
    return path;
  }
  testing::TempDir folder_;
};

TEST_F(BlockFile, PicturesAreReadAsTheyStand) {
  const std::string path = write("# two heads\n16x32 h\nX.\n/X  # the second\n\n.?\n..\n");
  const Problem p = parse_problem("fwd fp32 b3 h2 sq30 sk50 d16 blocks(" + path + ")");
  EXPECT_EQ(p.blocks->block_q, 16);
  EXPECT_EQ(p.blocks->block_k, 32);
  EXPECT_TRUE(p.blocks->of_head);
  EXPECT_FALSE(p.blocks->of_batch);
  EXPECT_TRUE(p.blocks->bitmaps);
  EXPECT_EQ(p.blocks->states,
            (std::vector<std::int32_t>{kAll, kNone, 0, kAll, kNone, 1, kNone, kNone}));
  EXPECT_EQ(parse_problem(to_line(p)), p);
}

TEST_F(BlockFile, WhatIsNoPictureIsRefusedWithItsPlace) {
  const auto of = [&](const std::string& text) { return refused_blocks(write(text)); };
  EXPECT_NE(of("").find("the first line is not of the form QxK"), std::string::npos);
  EXPECT_NE(of("32 32\nXX\nXX\n").find("first line"), std::string::npos);
  EXPECT_NE(of("24x32\nXX\nXX\n").find("multiples of 16"), std::string::npos);
  EXPECT_NE(of("32x32\nXX\n").find("1 lines of blocks; this problem takes 2 for each of 1 maps"),
            std::string::npos);
  EXPECT_NE(of("32x32 h\nXX\nXX\n").find("2 for each of 2 maps"), std::string::npos);
  EXPECT_NE(of("32x32\nXX\nXXX\n").find("line 3: 3 blocks of keys; this problem takes 2"),
            std::string::npos);
  EXPECT_NE(of("32x32\nXX\nX1\n").find("line 3: a sign that is none of"), std::string::npos);
  EXPECT_NE(of("32x32\nXX\nX X\n").find("line 3: a line has one word"), std::string::npos);
  EXPECT_NE(refused_blocks("/no/such/file").find("blocks(/no/such/file): cannot read"),
            std::string::npos);
}

TEST(BlocksOfALine, FormsThatAreNoneAreRefused) {
  for (const char* text :
       {"random", "random,0.5", "random,1.5,1", "random,-0.1,1", "random,nan,1", "random,0.5,x",
        "random,0.5,-1", "random,0.5,1,wide", "random,0.5,1,h,64x64"}) {
    EXPECT_NE(refused_blocks(text).find("is not of the form blocks(random,DENSITY,SEED"),
              std::string::npos)
        << text;
  }
  EXPECT_NE(refused_blocks("random,0.5,1,8x16").find("multiples of 16"), std::string::npos);
  EXPECT_NE(refused_blocks("0x16").find("multiples of 16"), std::string::npos);
  EXPECT_NE(refused_blocks("16x-16").find("multiples of 16"), std::string::npos);
  EXPECT_NE(refused_blocks("64x64,q").find("blocks(QxK[,b][,h][,partial])"), std::string::npos);
  EXPECT_NE(refused_blocks("random,0.5,1) blocks(random,0.5,1").find("a second blocks"),
            std::string::npos);
  EXPECT_NE(refused_blocks("random,0.5,1", "h2 d16 lens(30,40)").find("dense"), std::string::npos);
  EXPECT_NE(refused_blocks("random,0.5,1,16x16", "h2 s1000000 d16").find("2^24"),
            std::string::npos);
  EXPECT_NE(refused_blocks("64x64", "h2 d16 lens(30,40)").find("dense"), std::string::npos);
}

TEST(BlocksOfALine, DrawsAreAsManyAsTheDensityHas) {
  for (const double density : {0.0, 0.05, 0.25, 0.5, 1.0}) {
    const Problem p = parse_problem("fwd fp32 b2 h2 s1000 d16 blocks(random," +
                                    std::to_string(density) + ",3,16x16,b,h)");
    const std::int64_t map = 63 * 63;
    ASSERT_EQ(std::ssize(p.blocks->states), 4 * map);
    std::vector<std::vector<std::int32_t>> maps;
    for (std::int64_t n = 0; n < 4; ++n) {
      maps.emplace_back(p.blocks->states.begin() + n * map,
                        p.blocks->states.begin() + (n + 1) * map);
      EXPECT_EQ(std::ranges::count(maps.back(), kAll),
                std::lround(density * static_cast<double>(map)));
      if (n > 0 && density > 0 && density < 1) {
        EXPECT_NE(maps[0], maps.back());
      }
    }
  }
}

// Every pair by itself.
double counted(const Problem& p) {
  const BlockArrays arrays(p);
  const BlockLists lists = arrays.pointers();
  double pairs = 0;
  for (std::int64_t b = 0; b < p.b; ++b) {
    for (std::int64_t h = 0; h < p.hq; ++h) {
      const std::vector<std::int32_t> states = states_of_head(p, lists, b, h);
      for (std::int64_t i = 0; i < p.sq; ++i) {
        for (std::int64_t j = 0; j < p.sk; ++j) {
          const std::int64_t at =
              i / p.blocks->block_q * p.blocks->columns(p.sk) + j / p.blocks->block_k;
          const std::int32_t state = states[static_cast<std::size_t>(at)];
          if (state == kNone || j < p.mask.key_begin(i, p.sq, p.sk) ||
              j >= p.mask.key_end(i, p.sq, p.sk))
            continue;
          if (state == kAll) {
            ++pairs;
            continue;
          }
          const auto bits = line_bitmap(*p.blocks, state);
          const std::int64_t word =
              i % p.blocks->block_q * p.blocks->row_words() + j % p.blocks->block_k / 32;
          pairs += bits[static_cast<std::size_t>(word)] >> (j % p.blocks->block_k % 32) & 1U;
        }
      }
    }
  }
  return pairs;
}

TEST(BlocksOfALine, OperationsAreOfThePairsThatAreSeen) {
  for (const char* rest : {"sq100 sk70 blocks(random,0.5,1,16x32)",
                           "sq100 sk130 blocks(random,0.5,1,32x48,b,h,partial)",
                           "sq90 sk90 window(20,4) blocks(random,0.7,2,32x32,h)"}) {
    const Problem p = parse_problem(std::string("fwd fp32 b2 h2 d16 ") + rest);
    EXPECT_EQ(counted_pairs(p) * static_cast<double>(p.hq), counted(p)) << rest;
    EXPECT_EQ(forward_flops(p), 4.0 * 16 * counted(p)) << rest;
  }
}

TEST(BlocksOfALine, ListsByKeysAreThoseByQueriesTurned) {
  const Problem p =
      parse_problem("fwd fp32 b2 h3 sq200 sk300 d16 blocks(random,0.4,5,16x32,b,h,partial)");
  const BlockArrays arrays(p);
  EXPECT_NO_THROW(require_block_lists(p, arrays.pointers()));
  EXPECT_EQ(std::accumulate(arrays.kv_counts.begin(), arrays.kv_counts.end(), 0),
            std::accumulate(arrays.q_counts.begin(), arrays.q_counts.end(), 0));
  const auto again = states_of_head(p, arrays.pointers(), 1, 2);
  const std::int64_t map = std::ssize(again);
  EXPECT_TRUE(std::equal(again.begin(), again.end(), p.blocks->states.begin() + 5 * map));
}

// A tile is seen where lists and the ends of the mask leave it a pair, and counted alike from both
// sides.
TEST(BlockTiles, AreThoseWithAPair) {
  for (const char* mask : {"", " causal", " window(40,9)"}) {
    const Problem p = parse_problem(std::string("fwd bf16") + mask +
                                    " b1 h1 sq100 sk130 d64 blocks(random,0.4,3,16x32)");
    const auto columns = p.blocks->columns(p.sk);
    const auto sees = [&](std::int64_t i, std::int64_t j) {
      const auto at = static_cast<std::size_t>(i / 16 * columns + j / 32);
      return p.blocks->states[at] != kAbsentBlock && p.mask.key_begin(i, p.sq, p.sk) <= j &&
             j < p.mask.key_end(i, p.sq, p.sk);
    };
    for (const auto& [rows, keys] : {std::pair{16, 32}, {32, 16}, {24, 80}}) {
      double from_queries = 0, from_keys = 0;
      for (std::int64_t i = 0; i < p.sq; i += rows) {
        const std::int64_t end = std::min<std::int64_t>(i + rows, p.sq);
        const std::vector<bool> seen = seen_key_tiles(p, 0, i, end, keys);
        ASSERT_EQ(std::ssize(seen), (p.sk + keys - 1) / keys);
        for (std::int64_t j = 0; j < p.sk; ++j) {
          for (std::int64_t row = i; row < end; ++row) {
            if (sees(row, j)) {
              EXPECT_TRUE(seen[static_cast<std::size_t>(j / keys)]) << row << " " << j;
            }
          }
        }
        from_queries += static_cast<double>(std::count(seen.begin(), seen.end(), true));
      }
      for (std::int64_t j = 0; j < p.sk; j += keys) {
        const auto seen = seen_query_tiles(p, 0, j, std::min<std::int64_t>(j + keys, p.sk), rows);
        from_keys += static_cast<double>(std::count(seen.begin(), seen.end(), true));
      }
      const TileCounts counts = seen_tiles(p, rows, keys);
      EXPECT_EQ(counts.seen, from_queries);
      if (rows == 16) {
        EXPECT_LT(counts.seen, counts.all);
      }
      if (keys % 32 == 0 && rows % 16 == 0 && p.mask == kFull) {
        EXPECT_EQ(from_keys, from_queries);
      }
    }
  }
}

TEST(BlocksOfALine, TilesFitBlocks) {
  EXPECT_EQ(side_within(128, 64, 16), 64);
  EXPECT_EQ(side_within(128, 256, 16), 128);
  EXPECT_EQ(side_within(48, 64, 16), 48);
  EXPECT_EQ(side_within(80, 64, 16), 16);
  EXPECT_EQ(side_within(192, 128, 32), 96);
  EXPECT_EQ(side_within(16, 64, 16), 16);
}

}  // namespace
}  // namespace dfa
