// Rows of an output on the host, recomputed: what the accuracy guard sees.
#include "reference/rows_check.h"

#include <gtest/gtest.h>

#include <limits>

#include "reference/backend.h"
#include "tensors.h"

namespace dfa {
namespace {

constexpr int kRows = 16;

ForwardArgs made(Tensors& t) {
  const ForwardArgs args = t.forward_args();
  reference_backend().forward(reference_backend().plan(t.p, {}), args, {});
  return args;
}

void set(std::vector<std::byte>& tensor, DType type, float value) {
  const auto count = std::ssize(tensor) / bytes_of(type);
  for (std::int64_t at = 0; at < count; ++at) store_element(tensor.data(), type, at, value);
}

TEST(RowsCheck, ARightOutputIsAsFarOffAsItsRounding) {
  for (const char* line :
       {"fwd bf16 causal b2 hq4 hk2 sq30 sk50 d32 dv16", "fwd e4m3 b2 hq6 hk3 s40 d16",
        "fwd fp32 b1 h2 s20 d8 softcap(3) alibi sink", "fwd fp16 b1 h2 s33 d8 layout(bshd)",
        "fwd fp32 b1 h3 sq40 sk9 d8 causal"}) {  // of rows without a key, too
    Tensors t(line);
    const ForwardArgs args = made(t);
    const auto check = host_rows_check(t.p, kRows);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const double error = check->error(args, seed, {});
      EXPECT_LT(error, t.p.o_dtype() == DType::fp32 ? 1e-6 : 0.01) << line;
      EXPECT_EQ(error, check->error(args, seed, {})) << line;
    }
  }
}

// Each draw is of another head and other rows: a fault in one head is found before long.
TEST(RowsCheck, AFaultInOneHeadIsFound) {
  Tensors t("fwd fp32 b2 h2 s40 d8");
  const ForwardArgs args = made(t);
  const Strides strides = t.p.o();
  for (std::int64_t row = 0; row < t.p.sq; ++row) {
    const std::int64_t at = strides.batch + strides.head + row * strides.row;
    store_element(t.o.data(), DType::fp32, at, load_element(t.o.data(), DType::fp32, at) + 0.5f);
  }
  const auto check = host_rows_check(t.p, kRows);
  int found = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const double error = check->error(args, seed, {});
    found += error > 0.4;
    EXPECT_TRUE(error < 1e-6 || (error > 0.49 && error < 0.51)) << error;
  }
  EXPECT_GE(found, 3);
  EXPECT_LE(found, 20);
}

TEST(RowsCheck, WhatIsNotFiniteIsInfinitelyFarOffUnlessItsInputsAreNot) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Tensors t("fwd bf16 b1 h1 s10 d8");
    const ForwardArgs args = made(t);
    const auto check = host_rows_check(t.p, kRows);
    set(t.o, DType::bf16, bad);
    EXPECT_EQ(check->error(args, 1, {}), std::numeric_limits<double>::infinity());
    set(t.v, DType::bf16, bad);
    EXPECT_EQ(check->error(args, 1, {}), 0);
  }
}

TEST(RowsCheck, WhatCannotBeCheckedIsRefused) {
  const Problem p = parse_problem("fwd bf16 b1 h1 s10 d8");
  EXPECT_THROW(host_rows_check(p, 0), InvalidArgument);
  EXPECT_THROW(host_rows_check(p, (1 << 16) + 1), InvalidArgument);
  EXPECT_THROW(host_rows_check(parse_problem("fwd bf16 h1 lens(5,9) d8"), 4), Unsupported);
}

}  // namespace
}  // namespace dfa
