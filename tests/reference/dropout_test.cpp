// The reference's dropout: its generator by the numbers that Random123 publishes, its masks by
// hand.
#include <gtest/gtest.h>

#include "reference/head_dropout.h"

namespace dfa {
namespace {

TEST(HeadDropout, PhiloxDrawsThePublishedNumbers) {
  using Counter = Philox::Counter;
  EXPECT_EQ(Philox::draw({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      Philox::draw({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      Philox::draw({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Under seed 0 the first draw of the first head is the first of those: words of two numbers, low
// halves first, are of keys 0, 8, 16, 24 of query 0 and then of query 8.
TEST(HeadDropout, KeepsNumbersBelowAThreshold) {
  const unsigned numbers[8] = {0xe8d5, 0x6627, 0xc58d, 0xe169, 0xac4c, 0xbc57, 0xdbd8, 0x9b00};
  for (int n = 0; n < 8; ++n) {
    Problem p = parse_problem("fwd fp32 b1 h1 sq16 sk32 d8 dropout(0.5,0)");
    const auto number = static_cast<double>(numbers[n]);
    p.dropout = (65536 - number) / 65536;  // so many are kept
    EXPECT_EQ(HeadDropout<double>(p, {}, 0, 0).of(n / 4 * 8, n % 4 * 8), 0) << n;
    p.dropout = (65535 - number) / 65536;
    EXPECT_EQ(HeadDropout<double>(p, {}, 0, 0).of(n / 4 * 8, n % 4 * 8), 65536 / (number + 1)) << n;
  }
}

}  // namespace
}  // namespace dfa
