// fp32 as sums of bf16 on a processor: every part holds what the ones before have left.
#include <gtest/gtest.h>

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/forward/fp32x3_planes.cuh"

namespace dfa {
namespace {

float part(unsigned packed, int half) {
  return std::bit_cast<float>(half == 0 ? packed << 16 : packed & 0xffff0000u);
}

TEST(Fp32x3Planes, PartsAddUpToTheNumberAndShrinkByEightBits) {
  std::mt19937 random(3);
  std::uniform_int_distribution<unsigned> bits;
  for (int i = 0; i < 100000; ++i) {
    float x = std::bit_cast<float>(bits(random));
    // Of the normal range that leaves room for the last part, and below what rounds to infinity.
    if (!(std::fabs(x) > 1e-30f && std::fabs(x) < 3e38f)) continue;
    unsigned parts[kPlanes];
    split(parts, x, -x);
    double sum = 0;
    for (const unsigned p : parts) {
      EXPECT_EQ(part(p, 0), -part(p, 1));
      EXPECT_LE(std::fabs(part(p, 0)), std::fabs(x - sum) * (1 + 0x1p-8));
      sum += part(p, 0);
    }
    EXPECT_EQ(static_cast<float>(sum), x);
    EXPECT_EQ(sum, static_cast<double>(x));
  }
}

TEST(Fp32x3Planes, ChunksFollowStridesAndFillDensePlanes) {
  constexpr int kB = 2, kHeads = 3, kRows = 5, kColumns = 24;
  std::vector<float> from(4096);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = 1.f + static_cast<float>(i) * 0x1p-20f;
  constexpr long long kElements = kB * kHeads * kRows * kColumns;
  std::vector<unsigned short> planes(kPlanes * kElements, 0xffff);
  const Fp32x3Tensor t{.from = from.data(),
                       .planes = planes.data(),
                       .strides = {.batch = 1024, .head = 48, .row = 160},
                       .heads = kHeads,
                       .rows = kRows,
                       .columns = kColumns,
                       .chunks = kElements / kPlanesColumns};
  for (long long chunk = 0; chunk < t.chunks; ++chunk) fp32x3_chunk(t, chunk);
  long long at = 0;
  for (int b = 0; b < kB; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column, ++at) {
          float sum = 0;
          for (int plane = kPlanes - 1; plane >= 0; --plane) {
            sum += part(planes[static_cast<std::size_t>(plane * kElements + at)], 0);
          }
          EXPECT_EQ(sum, from[static_cast<std::size_t>(b * 1024 + h * 48 + row * 160 + column)]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dfa
