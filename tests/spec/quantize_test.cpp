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

TEST(CacheOfAnotherType, IsSaidInTheLine) {
  const std::string line = "fwd bf16 hq4 hk2 d64 lens(5,1) lens_k(130,70) page(16) kv(e4m3)";
  const Problem p = parse_problem(line);
  EXPECT_EQ(p.kv_dtype(), DType::e4m3);
  EXPECT_EQ(p.dtype, DType::bf16);
  EXPECT_EQ(parse_problem(to_line(p)), p);
  for (const char* wrong :
       {"fwd bf16 h1 s64 d64 kv(e4m3)", "fwd bf16 h1 d64 lens(5) kv(e4m3)",
        "fwd e4m3 h1 d64 lens(5) page(16) kv(e4m3)", "fwd tf32 h1 d64 lens(5) page(16) kv(e4m3)",
        "fwd bf16 h1 d64 lens(5) page(16) kv(bf16)",
        "fwd bf16 h1 d64 lens(5) page(16) kv(e4m3) kv(e4m3)"}) {
    EXPECT_THROW(parse_problem(wrong), InvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace dfa
