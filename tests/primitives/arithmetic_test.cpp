// kernels/ptx/arithmetic.cuh on a device, held against the host's arithmetic.
#include <limits>

#include "primitives/probe_case.h"

namespace dfa::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr unsigned kThreads = 128, kBlocks = 64;
constexpr std::size_t kCount = kThreads * kBlocks - 96;  // the last block has threads too many

class Arithmetic : public Primitives {
 protected:
  // "sm75 F" is F with the instructions of sm_75.
  static std::string entry_of(const std::string& function) {
    const bool sm75 = function.rfind("sm75 ", 0) == 0;
    return (sm75 ? "sm75 each<dfa::probe::" + function.substr(5) : "each<dfa::probe::" + function) +
           ">";
  }

  template <typename T>
  std::vector<T> each(const std::string& function, std::size_t outputs, const Input& a,
                      const Input& b = {}) {
    return run<T>(entry_of(function), {kBlocks, kThreads}, kCount * outputs,
                  {.n = static_cast<int>(kCount)}, a, b);
  }

  // Any bits: denormals, infinities and NaN among them, and the halves between 16-bit numbers.
  std::vector<float> any_floats() {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      std::uint32_t bits = word();
      if (i % 4 == 1) bits = (bits & 0xffff0000u) | 0x8000u;
      if (i % 4 == 2) bits = 0x38000000u + (bits % 0x10000000u & ~0xfffu);
      if (i % 4 == 3) bits = std::bit_cast<std::uint32_t>(normal());
      values[i] = std::bit_cast<float>(bits);
    }
    values[0] = kInfinity;
    values[1] = -kInfinity;
    values[2] = kNan;
    values[3] = -0.f;
    values[4] = 65519.99f;
    values[5] = 65520.f;
    return values;
  }
};

TEST_F(Arithmetic, Exp2IsWithinItsBoundAndEndsInZeroAndInfinity) {
  std::vector<float> x = normals(kCount);
  for (float& value : x) value *= 40;
  x[0] = -kInfinity, x[1] = kInfinity, x[2] = kNan, x[3] = -150, x[4] = 0, x[5] = 1;
  const auto y = each<float>("Exp2", 1, x);
  EXPECT_EQ(y[0], 0.f);
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.f);
  EXPECT_EQ(y[4], 1.f);
  EXPECT_EQ(y[5], 2.f);
  for (std::size_t i = 6; i < kCount; ++i) {
    const double expected = std::exp2(static_cast<double>(x[i]));
    if (expected < 0x1p-126) continue;  // flushed
    if (expected > 0x1p127) continue;
    ASSERT_NEAR(y[i] / expected, 1, 0x1p-22) << x[i];
  }
}

TEST_F(Arithmetic, Log2IsWithinItsBound) {
  std::vector<float> x = normals(kCount);
  for (std::size_t i = 0; i < kCount; ++i) x[i] = i % 2 ? std::exp2(20 * x[i]) : std::abs(x[i]);
  x[0] = 0, x[1] = kInfinity, x[2] = 1, x[3] = -1;
  const auto y = each<float>("Log2", 1, x);
  EXPECT_EQ(y[0], -kInfinity);
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_EQ(y[2], 0.f);
  EXPECT_TRUE(std::isnan(y[3]));
  for (std::size_t i = 4; i < kCount; ++i) {
    if (x[i] < 0x1p-126f || x[i] > 0x1p126f) continue;
    const double expected = std::log2(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i], expected, 0x1p-22 * std::max(1., std::abs(expected))) << x[i];
  }
}

TEST_F(Arithmetic, ReciprocalIsWithinAnUnit) {
  std::vector<float> x = normals(kCount);
  x[0] = 0, x[1] = -kInfinity, x[2] = 1;
  const auto y = each<float>("Reciprocal", 1, x);
  EXPECT_EQ(y[0], kInfinity);
  EXPECT_EQ(y[1], 0.f);
  EXPECT_EQ(y[2], 1.f);
  for (std::size_t i = 3; i < kCount; ++i) {
    ASSERT_NEAR(y[i] * static_cast<double>(x[i]), 1, 0x1p-23) << x[i];
  }
}

TEST_F(Arithmetic, PackRoundsToNearestEvenWithTheFirstBelow) {
  for (const std::string entry :
       {"Pack<dfa::DType::bf16>", "Pack<dfa::DType::fp16>", "sm75 Pack<dfa::DType::fp16>"}) {
    if (!runs_here(entry_of(entry))) continue;
    const DType type = entry.find("bf16") != std::string::npos ? DType::bf16 : DType::fp16;
    const std::vector<float> low = any_floats(), high = any_floats();
    const auto y = each<std::uint32_t>(entry, 1, low, high);
    const auto expect = [&](float from, std::uint32_t bits) {
      const std::uint32_t wanted = type == DType::bf16 ? to_bf16(from).bits : to_fp16(from).bits;
      const std::uint32_t infinity = type == DType::bf16 ? 0x7f80 : 0x7c00;
      if (std::isnan(from)) {
        ASSERT_GT(bits & 0x7fff, infinity) << name_of(type);  // which NaN is the machine's choice
      } else {
        ASSERT_EQ(bits, wanted) << name_of(type) << " of " << from;
      }
    };
    for (std::size_t i = 0; i < kCount; ++i) {
      expect(low[i], y[i] & 0xffff);
      expect(high[i], y[i] >> 16);
    }
  }
}

TEST_F(Arithmetic, UnpackIsExact) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    const std::vector<std::uint32_t> packed = words(kCount);
    const auto y = each<float>("Unpack<" + of(type) + ">", 2, packed);
    for (std::size_t i = 0; i < 2 * kCount; ++i) {
      const auto bits = static_cast<std::uint16_t>(packed[i / 2] >> i % 2 * 16);
      const float expected = type == DType::bf16 ? to_float(bf16{bits}) : to_float(fp16{bits});
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else {
        ASSERT_EQ(y[i], expected) << name_of(type) << " " << bits;
      }
    }
  }
}

TEST_F(Arithmetic, Tf32KeepsTenBitsRoundedAwayFromZeroAtHalves) {
  if (!runs_here(entry_of("RoundTf32"))) GTEST_SKIP() << "from 8.0 on";
  std::vector<float> x = any_floats();
  for (std::size_t i = 6; i < kCount; i += 7) {
    x[i] = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x[i]) & ~0x1fffu) | 0x1000u);
  }
  const auto y = each<std::uint32_t>("RoundTf32", 1, x);
  for (std::size_t i = 0; i < kCount; ++i) {
    // Bits below the mantissa's ten are not read by a product; near the largest number rounding
    // gives infinity.
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(y[i])));
    } else if (std::isfinite(x[i])) {
      ASSERT_EQ(std::bit_cast<float>(y[i] & ~0x1fffu), rounded_tf32(x[i])) << x[i];
    } else {
      ASSERT_EQ(std::bit_cast<float>(y[i]), x[i]);
    }
  }
}

TEST_F(Arithmetic, WordsKeepTheirBitsAndPlaces) {
  const std::vector<std::uint32_t> given = words(4 * kCount);
  EXPECT_EQ(each<std::uint32_t>("Bits", 4, given), given);
  const auto infinities = each<float>("Infinity", 1, given);
  EXPECT_EQ(infinities, std::vector<float>(kCount, kInfinity));
}

TEST_F(Arithmetic, QuadsHaveTheirMaximumAndTheirSumInEveryLane) {
  const std::vector<float> x = normals(kCount);
  const auto most = each<float>("QuadMax", 1, x), sum = each<float>("QuadSum", 1, x);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float* four = x.data() + i / 4 * 4;
    ASSERT_EQ(most[i], *std::max_element(four, four + 4));
    ASSERT_EQ(sum[i], (four[0] + four[1]) + (four[2] + four[3]));
  }
}

}  // namespace
}  // namespace dfa::cuda
