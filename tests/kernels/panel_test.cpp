#include "kernels/tile/panel.h"

#include <gtest/gtest.h>

#include "kernels/tile/swizzle.h"

namespace dfa {
namespace {

TEST(Panel, TilesAreWholePanels) {
  EXPECT_EQ(tile_bytes(128, 64), 128 * 128);
  EXPECT_EQ(tile_bytes(80, 96), 2 * 80 * 128);
  EXPECT_EQ(panels(256), 4);
}

TEST(Panel, DescriptorsCountSixteenBytesAndNameTheSwizzle) {
  const Descriptor q = k_in_columns(0x20400);
  EXPECT_EQ(q.bits() & 0x3fff, 0x2040u);
  EXPECT_EQ(q.bits() >> 32 & 0x3fff, 1024u / 16);
  EXPECT_EQ(q.bits() >> 62, 1u);
  EXPECT_EQ((k_in_rows<128>(0).bits() >> 16 & 0x3fff) * 16, 128u * 128);
}

TEST(Panel, StepsOfSixteenStayInARowAndThenTakeTheNextPanel) {
  EXPECT_EQ(column_step<64>(3), 96);
  EXPECT_EQ(column_step<64>(4), 64 * 128);
  EXPECT_EQ(column_step<64>(5), 64 * 128 + 32);
  EXPECT_EQ(row_step(2), 32 * 128);
  EXPECT_EQ(k_in_columns(1024).moved(96).bits() - k_in_columns(1024).bits(), 6u);
}

// The output is staged by this rule, which the copy engine's 128-byte swizzle follows.
TEST(Panel, ASwizzledRowPermutesItsEightChunks) {
  EXPECT_EQ(Swizzle<64>::offset(3, 5), 3u * 128 + (5 ^ 3) * 16);
  EXPECT_EQ(Swizzle<64>::offset(9, 0), 9u * 128 + 16);
}

}  // namespace
}  // namespace dfa
