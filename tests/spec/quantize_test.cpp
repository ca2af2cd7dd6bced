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

TEST(Quantize, EachBlockOfRowsHasAFactor) {
  const Problem p = parse_problem("fwd e4m3 b2 hq4 hk2 sq130 sk70 d8 descale_rows(64)");
  std::vector<float> from(static_cast<std::size_t>(extent(p.q(), 2, 4, 130, 8)));
  for (std::size_t i = 0; i < from.size();
       ++i) {  // of [b, h, s, d]: the row, and more in odd heads
    from[i] = static_cast<float>(1 + i / 8 % 130) * (i / 1040 % 2 == 1 ? 2.0f : 1.0f);
  }
  std::vector<std::byte> to(from.size());
  const std::vector<float> factors = quantize(from.data(), quantizable_q(p), to.data());
  ASSERT_EQ(factors.size(), 12u);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const float largest[] = {128, 256, 260};  // of the odd head of a group
    EXPECT_EQ(factors[i], largest[i % 3] / 448) << i;
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float factor = factors[i / 2080 * 3 + i / 8 % 130 / 64];
    EXPECT_EQ(load_element(to.data(), DType::e4m3, static_cast<std::int64_t>(i)),
              round_to(DType::e4m3, from[i] / factor));
  }
  EXPECT_EQ(quantize(from.data(), quantizable_k(p), to.data()).size(), 8u);
  const Descales descales = descales_of(p, from.data(), from.data(), from.data());
  EXPECT_EQ(descales.q.batch, 6);
  EXPECT_EQ(descales.q.head, 3);
  EXPECT_EQ(descales.v.head, 2);
  EXPECT_EQ(descales.v.block, 1);
}

TEST(Quantize, BlocksOfRowsAreSaidInTheLine) {
  const Problem p = parse_problem("fwd e4m3 h2 s70 d64 descale_rows(128)");
  EXPECT_EQ(p.descale_rows, 128);
  EXPECT_EQ(parse_problem(to_line(p)), p);
  const auto said = [](const std::string& line) {
    try {
      parse_problem(line);
      return std::string();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  const auto names = [&](const char* line, const char* words) {
    EXPECT_NE(said(line).find(words), std::string::npos) << line << ": " << said(line);
  };
  names("fwd e4m3 h2 s70 d64 descale_rows(0)", "descale_rows(N), N from 1");
  names("fwd e4m3 h2 s70 d64 descale_rows(x)", "descale_rows(N), N from 1");
  names("fwd e4m3 h2 s70 d64 descale_rows(96)", "descale_rows(96); accepted: a multiple of 64");
  names("fwd e4m3 h2 s70 d64 descale_rows(64) descale_rows(64)", "a second descale_rows");
  names("fwd bf16 h2 s70 d64 descale_rows(64)", "of bf16; accepted: of e4m3");
  names("fwd e4m3 h2 d64 lens(5,70) descale_rows(64)", "accepted: of dense tensors");
  names("fwd bf16 h1 d64 lens(5) page(16) kv(e4m3) descale_rows(64)", "of bf16");
  Problem negative = p;
  negative.descale_rows = -64;
  EXPECT_THROW(validate(negative), InvalidArgument);
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
