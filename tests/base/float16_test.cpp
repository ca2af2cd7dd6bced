#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace dfa {
namespace {

template <typename Half>
float decode(std::uint32_t bits) {
  return to_float(Half{static_cast<std::uint16_t>(bits)});
}

TEST(Float16, EveryFp16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = decode<fp16>(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_fp16(value))));
    } else {
      EXPECT_EQ(to_fp16(value).bits, bits);
    }
  }
}

TEST(Float16, EveryBf16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = decode<bf16>(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(value))));
    } else {
      EXPECT_EQ(to_bf16(value).bits, bits);
    }
  }
}

// Between neighbours the nearer wins, and a tie goes to the even one.
TEST(Float16, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = decode<fp16>(bits), high = decode<fp16>(bits + 1);
    const float middle = 0.5f * (low + high);
    EXPECT_EQ(to_fp16(middle).bits, (bits & 1) ? bits + 1 : bits);
    EXPECT_EQ(to_fp16(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(to_fp16(std::nextafter(middle, high)).bits, bits + 1);
  }
  EXPECT_EQ(to_fp16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(to_fp16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

}  // namespace
}  // namespace dfa
