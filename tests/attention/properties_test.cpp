#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attention/variants.h"
#include "base/random.h"

namespace dfa {
namespace {

double largest_difference(const Tensors& a, const std::vector<std::byte>& x,
                          const std::vector<std::byte>& y) {
  double largest = 0;
  for (std::int64_t i = 0; i < a.count(x); ++i) {
    largest = std::max(
        largest, std::fabs(static_cast<double>(a.at(x, i)) - static_cast<double>(a.at(y, i))));
  }
  return largest;
}

// Rows of [b, h, s, d] in another order.
void permute_rows(const Tensors& t, std::vector<std::byte>& data, std::int64_t d) {
  const std::vector<std::byte> from = data;
  const auto row = static_cast<std::size_t>(d * bytes_of(t.p.dtype));
  const auto rows = static_cast<std::size_t>(t.p.sk);
  for (std::size_t j = 0; j < rows; ++j) {
    std::memcpy(data.data() + j * row, from.data() + j * 37 % rows * row, row);
  }
}

TEST(Properties, TheOrderOfTheKeysDoesNotMatter) {
  const std::string line = "fwd fp32 b1 hq1 hk1 sq65 sk200 d64";
  for (const Variant& variant : variants_of(parse_problem(line))) {
    Tensors plain(line), permuted(line);
    permute_rows(permuted, permuted.k, 64);
    permute_rows(permuted, permuted.v, 64);
    run(plain, variant.options);
    run(permuted, variant.options);
    EXPECT_LT(largest_difference(plain, plain.o, permuted.o), 2e-6) << variant.name;
  }
}

// Two halves of the keys, merged by their log-sum-exps, are the whole.
TEST(Properties, HalvesMergeByTheirLogSumExp) {
  Tensors whole("fwd fp32 b1 hq1 hk1 sq40 sk256 d32");
  for (const Variant& variant : variants_of(whole.p)) {
    run(whole, variant.options);
    Tensors low("fwd fp32 b1 hq1 hk1 sq40 sk128 d32"), high = low;
    low.q = high.q = whole.q;
    const auto half = static_cast<std::ptrdiff_t>(low.k.size());
    low.k.assign(whole.k.begin(), whole.k.begin() + half);
    low.v.assign(whole.v.begin(), whole.v.begin() + half);
    high.k.assign(whole.k.begin() + half, whole.k.end());
    high.v.assign(whole.v.begin() + half, whole.v.end());
    run(low, variant.options);
    run(high, variant.options);
    for (std::int64_t i = 0; i < 40; ++i) {
      const auto row = static_cast<std::size_t>(i);
      const double lse = std::log(std::exp(low.lse[row]) + std::exp(high.lse[row]));
      EXPECT_NEAR(whole.lse[row], lse, 1e-5);
      for (std::int64_t x = i * 32; x < (i + 1) * 32; ++x) {
        const double merged = std::exp(low.lse[row] - lse) * low.at(low.o, x) +
                              std::exp(high.lse[row] - lse) * high.at(high.o, x);
        EXPECT_NEAR(whole.at(whole.o, x), merged, 2e-6) << variant.name;
      }
    }
  }
}

// One vector added to every key adds the same number to all logits of a row.
TEST(Properties, AConstantAddedToARowsLogitsChangesNothing) {
  const std::string line = "fwd fp32 b1 hq1 hk1 sq33 sk100 d16";
  for (const Variant& variant : variants_of(parse_problem(line))) {
    Tensors plain(line), shifted(line);
    for (std::int64_t j = 0; j < 100; ++j) {
      shifted.set(shifted.k, j * 16, plain.at(plain.k, j * 16) + 4.0f);
    }
    run(plain, variant.options);
    run(shifted, variant.options);
    EXPECT_LT(largest_difference(plain, plain.o, shifted.o), 1e-5) << variant.name;
    for (std::size_t i = 0; i < 33; ++i) {
      const float shift = plain.at(plain.q, static_cast<std::int64_t>(i) * 16);  // 4 / sqrt(16)
      EXPECT_NEAR(shifted.lse[i] - plain.lse[i], shift, 1e-4) << variant.name;
    }
  }
}

TEST(Properties, ABatchIsALoopBitForBit) {
  const std::string line = "fwdbwd bf16 causal b3 hq2 hk1 sq70 sk90 d64";
  const std::string one = "fwdbwd bf16 causal b1 hq2 hk1 sq70 sk90 d64";
  for (Variant variant : variants_of(parse_problem(line))) {
    variant.options.threads = 1;
    Tensors batch(line);
    run(batch, variant.options);
    for (std::size_t b = 0; b < 3; ++b) {
      Tensors t(one);
      const auto part = [&](std::vector<std::byte>& to, const std::vector<std::byte>& from) {
        std::memcpy(to.data(), from.data() + b * to.size(), to.size());
      };
      part(t.q, batch.q), part(t.k, batch.k), part(t.v, batch.v), part(t.d_o, batch.d_o);
      run(t, variant.options);
      const auto same = [&](const std::vector<std::byte>& x, const std::vector<std::byte>& all) {
        return std::memcmp(x.data(), all.data() + b * x.size(), x.size()) == 0;
      };
      EXPECT_TRUE(same(t.o, batch.o)) << variant.name;
      EXPECT_EQ(std::memcmp(t.lse.data(), batch.lse.data() + b * t.lse.size(),
                            t.lse.size() * sizeof(float)),
                0)
          << variant.name;
      EXPECT_TRUE(same(t.dq, batch.dq)) << variant.name;
      EXPECT_TRUE(same(t.dk, batch.dk)) << variant.name;
      EXPECT_TRUE(same(t.dv, batch.dv)) << variant.name;
    }
  }
}

// Without `deterministic` the number of threads may choose the order of dq's sum, chance may not.
TEST(Properties, TheSameThreadsGiveTheSameBitsRunAfterRun) {
  const std::string line = "fwdbwd fp32 causal b1 hq2 hk1 sq300 sk300 d64";
  for (Variant variant : variants_of(parse_problem(line))) {
    for (const int threads : {1, 2, 3}) {
      variant.options.threads = threads;
      Tensors first(line);
      run(first, variant.options);
      for (int again = 0; again < 3; ++again) {
        Tensors t(line);
        run(t, variant.options);
        EXPECT_EQ(t.o, first.o) << variant.name << " threads " << threads;
        EXPECT_EQ(t.dq, first.dq) << variant.name << " threads " << threads;
        EXPECT_EQ(t.dk, first.dk) << variant.name << " threads " << threads;
        EXPECT_EQ(t.dv, first.dv) << variant.name << " threads " << threads;
      }
    }
  }
}

TEST(Properties, ThreadsDoNotChangeABitOfTheForward) {
  const std::string line = "fwd fp32 b1 hq2 hk1 sq300 sk200 d40";
  for (Variant variant : variants_of(parse_problem(line))) {
    variant.options.threads = 1;
    Tensors first(line);
    run(first, variant.options);
    for (const int threads : {2, 3}) {
      variant.options.threads = threads;
      Tensors t(line);
      run(t, variant.options);
      EXPECT_EQ(t.o, first.o) << variant.name << " threads " << threads;
      EXPECT_EQ(t.lse, first.lse) << variant.name << " threads " << threads;
    }
  }
}

// The forward always, the backward when asked to be deterministic.
TEST(Properties, ThreadsDoNotChangeABit) {
  const std::string line = "fwdbwd bf16 causal b1 hq6 hk2 sq300 sk300 d64 deterministic";
  for (Variant variant : variants_of(parse_problem(line))) {
    variant.options.threads = 1;
    Tensors first(line);
    run(first, variant.options);
    for (const int threads : {1, 2, 3, 5}) {
      variant.options.threads = threads;
      Tensors t(line);
      run(t, variant.options);
      EXPECT_EQ(t.o, first.o) << variant.name << " threads " << threads;
      EXPECT_EQ(t.lse, first.lse) << variant.name;
      EXPECT_EQ(t.dq, first.dq) << variant.name << " threads " << threads;
      EXPECT_EQ(t.dk, first.dk) << variant.name;
      EXPECT_EQ(t.dv, first.dv) << variant.name;
    }
  }
}

TEST(Properties, LargeLogitsStayFinite) {
  for (const char* type : {"fp32", "bf16", "fp16"}) {
    const std::string line = std::string("fwdbwd ") + type + " causal b1 h2 s130 d64 scale(8)";
    for (const Variant& variant : variants_of(parse_problem(line))) {
      Tensors t(line);
      run(t, variant.options);
      ASSERT_GT(*std::max_element(t.lse.begin(), t.lse.end()), 60.0f);
      for (const auto* tensor : {&t.o, &t.dq, &t.dk, &t.dv}) {
        for (std::int64_t i = 0; i < t.count(*tensor); ++i) {
          ASSERT_TRUE(std::isfinite(t.at(*tensor, i))) << variant.name << " " << line;
        }
      }
    }
  }
}

// Each query selects one key so strongly that the softmax is one-hot: o is v's row to the bit.
TEST(Properties, OneHotRowsCopyTheirValueBitForBit) {
  for (const char* type : {"fp32", "bf16", "fp16"}) {
    const std::string line = std::string("fwd ") + type + " b1 hq1 hk1 sq64 sk64 d64 scale(1)";
    for (const Variant& variant : variants_of(parse_problem(line))) {
      Tensors t(line);
      for (std::int64_t i = 0; i < 64; ++i) {
        for (std::int64_t x = 0; x < 64; ++x) {
          t.set(t.q, i * 64 + x, x == i ? 32.0f : 0.0f);
          t.set(t.k, i * 64 + x, x == i * 37 % 64 ? 16.0f : 0.0f);
        }
      }
      run(t, variant.options);
      for (std::int64_t j = 0; j < 64; ++j) {
        const std::int64_t i = j * 37 % 64;
        for (std::int64_t x = 0; x < 64; ++x) {
          ASSERT_EQ(t.at(t.o, i * 64 + x), t.at(t.v, j * 64 + x)) << variant.name;
        }
      }
    }
  }
}

// Equal logits and small integers: every sum is exact, so o is the exact mean over 64 keys.
TEST(Properties, SmallIntegersAreExact) {
  for (const char* type : {"fp32", "bf16", "fp16"}) {
    const std::string line = std::string("fwd ") + type + " b1 hq1 hk1 sq33 sk64 d32";
    for (const Variant& variant : variants_of(parse_problem(line))) {
      Tensors t(line);
      for (std::int64_t i = 0; i < t.count(t.q); ++i) t.set(t.q, i, 0.0f);
      for (std::int64_t i = 0; i < t.count(t.v); ++i) {
        t.set(t.v, i, static_cast<float>(Random(5).below(static_cast<std::uint64_t>(i), 9)) - 4);
      }
      run(t, variant.options);
      for (std::int64_t x = 0; x < 32; ++x) {
        float sum = 0;
        for (std::int64_t j = 0; j < 64; ++j) sum += t.at(t.v, j * 32 + x);
        for (std::int64_t i = 0; i < 33; ++i) {
          ASSERT_EQ(t.at(t.o, i * 32 + x), round_to(t.p.dtype, sum / 64)) << variant.name;
        }
      }
    }
  }
}

// One key: p is 1, so dv is the sum of do, dq and dk are 0; all of them exact.
TEST(Properties, GradientsOfASingleKeyAreExact) {
  for (const char* type : {"fp32", "bf16", "fp16"}) {
    const std::string line = std::string("fwdbwd ") + type + " b1 hq1 hk1 sq40 sk1 d32";
    for (const Variant& variant : variants_of(parse_problem(line))) {
      Tensors t(line);
      const auto small = [&](std::vector<std::byte>& data, std::uint64_t seed) {
        for (std::int64_t i = 0; i < t.count(data); ++i) {
          const auto value = Random(seed).below(static_cast<std::uint64_t>(i), 3);
          t.set(data, i, static_cast<float>(value) - 1);
        }
      };
      for (std::int64_t i = 0; i < t.count(t.q); ++i) t.set(t.q, i, 0.0f);
      small(t.k, 11), small(t.v, 12), small(t.d_o, 13);
      run(t, variant.options);
      for (std::int64_t x = 0; x < 32; ++x) {
        float sum = 0;
        for (std::int64_t i = 0; i < 40; ++i) {
          sum += t.at(t.d_o, i * 32 + x);
          ASSERT_EQ(t.at(t.o, i * 32 + x), t.at(t.v, x)) << variant.name;
          ASSERT_EQ(t.at(t.dq, i * 32 + x), 0.0f) << variant.name;
        }
        ASSERT_EQ(t.at(t.dv, x), sum) << variant.name;
        ASSERT_EQ(t.at(t.dk, x), 0.0f) << variant.name;
      }
    }
  }
}

// Rows that see no key: o and dq are 0, lse is -inf, and they add nothing to dk and dv.
TEST(Properties, RowsThatSeeNothingAreZeroAndAddNothing) {
  const std::string all = "fwdbwd fp32 causal b1 hq1 hk1 sq100 sk30 d64";
  for (const Variant& variant : variants_of(parse_problem(all))) {
    Tensors t(all), other(all);
    for (std::int64_t i = 0; i < 70 * 64; ++i) {
      other.set(other.q, i, 3.0f);
      other.set(other.d_o, i, -5.0f);
    }
    run(t, variant.options);
    run(other, variant.options);
    for (std::int64_t i = 0; i < 70 * 64; ++i) {
      ASSERT_EQ(t.at(t.o, i), 0.0f) << variant.name;
      ASSERT_EQ(t.at(t.dq, i), 0.0f) << variant.name;
    }
    for (std::size_t i = 0; i < 70; ++i) {
      ASSERT_TRUE(std::isinf(t.lse[i]) && t.lse[i] < 0) << variant.name;
    }
    EXPECT_EQ(t.dk, other.dk) << variant.name;
    EXPECT_EQ(t.dv, other.dv) << variant.name;
  }
}

}  // namespace
}  // namespace dfa
