// What engines of a processor draw masks by: numbers that Random123 publishes, and any tile of a
// mask.
#include <gtest/gtest.h>

#include <vector>

#include "cpu/simd_dropout.h"

namespace dfa::cpu {
namespace {

struct AnyIsa {};
using Dropout = SimdDropout<AnyIsa>;

TEST(SimdDropout, PhiloxDrawsThePublishedNumbers) {
  const std::uint32_t counters[3][4] = {{0, 0, 0, 0},
                                        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
  const std::uint32_t keys[3][2] = {{0, 0}, {0xffffffff, 0xffffffff}, {0xa4093822, 0x299f31d0}};
  const std::uint32_t published[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (int n = 0; n < 3; ++n) {
    Dropout::Draws x;
    for (int word = 0; word < 4; ++word) {
      for (std::uint32_t& of_draw : x.words[word]) of_draw = counters[n][word];
    }
    Dropout::philox(x, keys[n][0], keys[n][1]);
    for (int word = 0; word < 4; ++word) {
      for (const std::uint32_t of_draw : x.words[word]) EXPECT_EQ(of_draw, published[n][word]);
    }
  }
}

// Of a mask of 70 queries and 200 keys any part is the same, wherever it begins.
TEST(SimdDropout, EveryTileIsAPartOfOneMask) {
  const DropoutDraw draw{.key = {5, 6}, .offset = 7, .kept = 40000};
  constexpr int kRows = 70, kKeys = 200;
  std::vector<float> mask;
  for (int row = 0; row < kRows; ++row) {
    for (int key = 0; key < kKeys + 24; key += 32) {
      float kept[32];
      Dropout::kept_of(draw, 3, row, key, kept);
      mask.insert(mask.end(), kept, kept + 32);
    }
  }
  for (const int rows : {1, 5, 16, 48}) {
    for (const int keys : {4, 16, 32, 96}) {
      std::vector<float> scratch(static_cast<std::size_t>(Dropout::scratch_words(rows, keys, 2)));
      Dropout dropout(draw, rows, keys, reinterpret_cast<std::byte*>(scratch.data()));
      for (int row = 0; row + rows <= kRows; row += rows) {
        for (int key = 0; key + keys <= kKeys; key += keys) {
          dropout.draw(3, row, rows, key, keys);
          for (int r = 0; r < rows; ++r) {
            const float* kept = dropout.kept(r, r % 2);
            for (int j = 0; j < keys; ++j) {
              ASSERT_EQ(kept[j], mask[static_cast<std::size_t>((row + r) * 224 + key + j)])
                  << rows << " " << keys << " " << row + r << " " << key + j;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dfa::cpu
