#include "spec/quantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/element.h"
#include "base/fill.h"

namespace dfa {
namespace {

// The largest of each key head's numbers becomes 448, and each number is nearest to what it was.
TEST(Quantize, EachKeyHeadHasAFactor) {
  const Problem p = parse_problem("fwd e4m3 b2 hq4 hk2 sq5 sk7 d8 layout(bshd)");
  const Quantizable tensor = quantizable_q(p);
  std::vector<float> from(static_cast<std::size_t>(extent(p.q(), 2, 4, 5, 8)));
  fill_normal(from.data(), DType::fp32, std::ssize(from), 1);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] *= i % 32 < 16 ? 1.0f : 1000.0f;
  std::vector<std::byte> to(from.size());
  const std::vector<float> factors = quantize(from.data(), tensor, to.data());
  ASSERT_EQ(factors.size(), 4u);
  float largest[4] = {};
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::size_t at = i / (5 * 32) * 2 + i % 32 / 16;
    const float code = load_element(to.data(), DType::e4m3, static_cast<std::int64_t>(i));
    largest[at] = std::max(largest[at], std::fabs(code));
    EXPECT_EQ(code, round_to(DType::e4m3, from[i] / factors[at])) << i;
    EXPECT_LE(std::fabs(code * factors[at] - from[i]),
              std::max(0x1p-4f * std::fabs(from[i]), 0x1p-10f * factors[at]) * 1.0001f);
  }
  for (const float one : largest) EXPECT_EQ(one, 448);
}

TEST(Quantize, ZerosHaveTheFactorOne) {
  const Problem p = parse_problem("fwd e4m3 b1 h1 s2 d8");
  const std::vector<float> from(16, 0.0f);
  std::vector<std::byte> to(16, std::byte{0xff});
  EXPECT_EQ(quantize(from.data(), quantizable_k(p), to.data()), std::vector<float>{1});
  for (const std::byte code : to) EXPECT_EQ(code, std::byte{0});
}

TEST(Quantize, PackedSequencesShareOne) {
  const Problem p = parse_problem("fwd e4m3 hq2 hk1 d8 lens(2,3) lens_k(4,9) page(2)");
  std::vector<float> from(static_cast<std::size_t>(p.total_k) * 8, 1.0f);
  std::vector<std::byte> to(from.size());
  EXPECT_EQ(quantize(from.data(), quantizable_k(p), to.data()).size(), 1u);
  for (const std::byte code : to) EXPECT_EQ(code, std::byte{0x7e});
  EXPECT_EQ(descales_of(p, from.data(), nullptr, nullptr).q.batch, 0);
}

}  // namespace
}  // namespace dfa
