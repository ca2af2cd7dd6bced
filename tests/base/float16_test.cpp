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

TEST(Float16, EveryE4m3SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x100; ++bits) {
    const e4m3 code{static_cast<std::uint8_t>(bits)};
    const float value = to_float(code);
    EXPECT_EQ(std::isnan(value), (bits & 0x7f) == 0x7f) << bits;
    EXPECT_FALSE(std::isinf(value)) << bits;
    EXPECT_EQ(to_e4m3(value).bits, bits);
  }
}

// By the definition: 4 bits of exponent with a bias of 7, 3 of mantissa, subnormals of 2^-9.
TEST(Float16, E4m3IsWhatItsBitsSay) {
  for (int bits = 0; bits < 0x7f; ++bits) {
    const int exponent = bits >> 3, mantissa = bits & 7;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(to_float(e4m3{static_cast<std::uint8_t>(bits)}), value) << bits;
    EXPECT_EQ(to_float(e4m3{static_cast<std::uint8_t>(bits | 0x80)}), -value) << bits;
  }
  EXPECT_EQ(to_float(e4m3{0x7e}), 448);
}

TEST(Float16, E4m3RoundsToNearestEvenAndSaturates) {
  for (std::uint32_t bits = 0; bits < 0x7e; ++bits) {
    const float low = to_float(e4m3{static_cast<std::uint8_t>(bits)});
    const float high = to_float(e4m3{static_cast<std::uint8_t>(bits + 1)});
    const float middle = 0.5f * (low + high);
    for (const std::uint32_t sign : {0u, 0x80u}) {
      const float s = sign ? -1.0f : 1.0f;
      EXPECT_EQ(to_e4m3(s * middle).bits, sign | ((bits & 1) ? bits + 1 : bits));
      EXPECT_EQ(to_e4m3(s * std::nextafter(middle, low)).bits, sign | bits);
      EXPECT_EQ(to_e4m3(s * std::nextafter(middle, high)).bits, sign | (bits + 1));
    }
  }
  for (const float large :
       {448.1f, 463.9f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_e4m3(large).bits, 0x7e) << large;
    EXPECT_EQ(to_e4m3(-large).bits, 0xfe) << large;
  }
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_e4m3(-0.0f).bits, 0x80);
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
