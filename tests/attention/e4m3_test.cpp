// Elements of 8 bits with factors, by every engine of this processor.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/variants.h"

namespace dfa {
namespace {

void expect_rule_by_every_variant(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto variants = flash_variants_of(parse_problem(line));
    EXPECT_GE(variants.size(), 2u) << line;
    Truths truths;
    for (const Variant& variant : variants) {
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name;
    }
    if (!kJudged) continue;  // the reference has no threads
    Tensors t(line, 3);
    run(t, {.backend = "reference"});
    EXPECT_EQ(fault(t, {"reference", {}}, 3, {.truths = &truths}), "");
  }
}

TEST(E4m3, EveryProblemMeetsTheRuleByEveryVariant) {
  const std::vector<std::string> lines = problem_lines("e4m3.txt");
  EXPECT_GE(lines.size(), 20u);
  expect_rule_by_every_variant(lines);
}

// A cache of 8 bits beside queries of 16 and 32.
TEST(E4m3, CachesMeetTheRuleOfTheQueries) {
  const std::vector<std::string> lines = problem_lines("e4m3_cache.txt");
  EXPECT_EQ(lines.size(), 17u);
  expect_rule_by_every_variant(lines);
}

// Bits are those of the same numbers in the queries' type, where factors are 1.
TEST(E4m3, CachesAreReadExactly) {
  for (const std::string type : {"bf16", "fp16", "fp32"}) {
    const std::string rest = " causal hq4 hk2 d64 lens(5,1) lens_k(130,70) page(16)";
    for (const Variant& variant :
         flash_variants_of(parse_problem("fwd " + type + rest + " kv(e4m3)"))) {
      Tensors narrow("fwd " + type + rest + " kv(e4m3)", 5), wide("fwd " + type + rest, 5);
      for (std::int64_t i = 0; i < wide.count(wide.k); ++i) {
        wide.set(wide.k, i, narrow.at(narrow.k, i));
        wide.set(wide.v, i, narrow.at(narrow.v, i));
      }
      narrow.factors = {};
      run(narrow, variant.options);
      run(wide, variant.options);
      EXPECT_EQ(narrow.o, wide.o) << variant.name;
    }
  }
}

// The rule sees a factor that is left out, and one of another head.
TEST(E4m3, FactorsOfACacheCount) {
  if (!kJudged) GTEST_SKIP() << "values are not judged in this build";
  const std::string line = "fwd bf16 hq4 hk2 d64 lens(5,1) lens_k(130,70) page(16) kv(e4m3)";
  for (const bool of_v : {false, true}) {
    Tensors t(line, 3);
    Tensors wrong = t;
    std::vector<float>& factors = of_v ? wrong.factors.v : wrong.factors.k;
    std::swap(factors[0], factors[1]);
    run(wrong, {.backend = "cpu"});
    t.o = wrong.o;
    t.lse = wrong.lse;
    EXPECT_NE(fault(t, {"swapped", {}}, 3), "") << of_v;
  }
}

// Of factors of blocks of rows it sees one that is left out, and one of another block.
TEST(E4m3, FactorsOfBlocksOfRowsCount) {
  if (!kJudged) GTEST_SKIP() << "values are not judged in this build";
  const std::string line = "fwd e4m3 hq4 hk2 sq130 sk300 d64 descale_rows(64)";
  for (Descale Descales::*one : {&Descales::q, &Descales::k, &Descales::v}) {
    for (const bool left_out : {false, true}) {
      Tensors t(line, 3);
      ForwardArgs args = t.forward_args();
      Descale& wrong = args.descales.*one;
      if (left_out) {
        wrong = {};
      } else {
        wrong.block = 0;
      }
      forward(plan(t.p, {.backend = "cpu"}), args);
      EXPECT_NE(fault(t, {"wrong", {}}, 3), "") << left_out;
    }
  }
}

// One factor for all blocks of rows is one for the sequence, to the bit.
TEST(E4m3, BlocksOfRowsMayShareAFactor) {
  const std::string line = "fwd e4m3 causal b2 hq4 hk2 sq130 sk300 d64";
  for (const Variant& variant : flash_variants_of(parse_problem(line))) {
    Tensors whole(line, 5), blocks(line + " descale_rows(64)", 5);
    blocks.q = whole.q, blocks.k = whole.k, blocks.v = whole.v;
    run(whole, variant.options);
    ForwardArgs args = blocks.forward_args();
    args.descales = whole.descales();
    for (Descale* one : {&args.descales.q, &args.descales.k, &args.descales.v}) one->block = 0;
    forward(plan(blocks.p, variant.options), args);
    EXPECT_EQ(whole.o, blocks.o) << variant.name;
    EXPECT_EQ(whole.lse, blocks.lse) << variant.name;
  }
}

// Of a dense tensor the fp32 numbers that it means.
std::vector<std::byte> widened(const Tensors& t, const std::vector<std::byte>& from,
                               std::int64_t heads, std::int64_t rows,
                               const std::vector<float>& factors) {
  const std::int64_t count = t.count(from), of_head = count / (t.p.b * heads);
  const std::int64_t share = t.p.descale_rows > 0 ? t.p.descale_rows : rows;
  const std::int64_t blocks = (rows + share - 1) / share;
  std::vector<std::byte> to(static_cast<std::size_t>(count) * sizeof(float));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t b = i / of_head / heads, h = i / of_head % heads;
    const std::int64_t row = i % of_head / (of_head / rows), hk = h / (heads / t.p.hk);
    const float factor =
        factors[static_cast<std::size_t>((b * t.p.hk + hk) * blocks + row / share)];
    store_element(to.data(), DType::fp32, i, t.at(from, i) * factor);
  }
  return to;
}

// The rule leaves room for probabilities of 8 bits, which engines of a processor do not have: what
// they lose beside fp32 of the same numbers is the rounding of o.
TEST(E4m3, EnginesLoseNoMoreThanStoringTheOutput) {
  const std::string lines[][2] = {{"causal b2 hq6 hk2 sq65 sk129 d64", ""},
                                  {"b2 h3 s40 d128 dv32 sink", ""},
                                  {"causal b2 hq6 hk2 sq165 sk329 d64 dv72", " descale_rows(64)"}};
  for (const auto& [sizes, more] : lines) {
    Tensors wide("fwd fp32 " + sizes, 4);
    for (const Variant& variant : flash_variants_of(parse_problem("fwd e4m3 " + sizes + more))) {
      Tensors t("fwd e4m3 " + sizes + more, 4);
      run(t, variant.options);
      wide.q = widened(t, t.q, t.p.hq, t.p.sq, t.factors.q);
      wide.k = widened(t, t.k, t.p.hk, t.p.sk, t.factors.k);
      wide.v = widened(t, t.v, t.p.hk, t.p.sk, t.factors.v);
      run(wide, {.backend = "reference"});
      for (std::int64_t i = 0; i < t.count(t.o); ++i) {
        const float right = wide.at(wide.o, i);
        ASSERT_NEAR(t.at(t.o, i), right, 0x1p-8f * std::fabs(right) + 2e-6f) << variant.name << i;
      }
      for (std::size_t i = 0; i < t.lse.size(); ++i) {
        ASSERT_NEAR(t.lse[i], wide.lse[i], 1e-5f * (1 + std::fabs(wide.lse[i]))) << variant.name;
      }
    }
  }
}

// Factors of one number for all, and none, which are 1.
TEST(E4m3, FactorsMayBeOneForAllOrNone) {
  const char* line = "fwd e4m3 b2 hq4 hk2 sq30 sk40 d64";
  for (const char* backend : {"cpu", "reference"}) {
    Tensors each(line, 8), one(line, 8), none(line, 8);
    const auto with = [&](Tensors& t, const Descales& descales) {
      ForwardArgs args = t.forward_args();
      args.descales = descales;
      forward(plan(t.p, {.backend = backend}), args);
      EXPECT_TRUE(check_forward(t.p, args).ok) << backend;
    };
    const float unit[4] = {1, 1, 1, 1}, half = 0.5f, halves[4] = {half, half, half, half};
    with(none, {.v = {halves, 2, 1}});
    with(one, {.q = {unit}, .k = {unit, 2, 1}, .v = {&half}});
    EXPECT_TRUE(none.o == one.o) << backend;
    EXPECT_TRUE(none.lse == one.lse) << backend;
    with(each, each.descales());
    EXPECT_FALSE(each.o == one.o) << backend;
  }
}

// Every code of a row of v comes out of a softmax that takes that row alone, as bf16 holds all.
TEST(E4m3, EveryCodeIsItsNumber) {
  for (const Variant& variant : flash_variants_of(parse_problem("fwd e4m3 b1 h1 sq1 sk1 d256"))) {
    Tensors t("fwd e4m3 b1 h1 sq1 sk1 d256", 1);
    for (std::int64_t i = 0; i < 256; ++i) t.v[static_cast<std::size_t>(i)] = std::byte(i);
    ForwardArgs args = t.forward_args();
    args.descales = {};
    forward(plan(t.p, variant.options), args);
    for (std::int64_t i = 0; i < 256; ++i) {
      const float code = t.at(t.v, i), out = t.at(t.o, i);
      if (i % 128 == 127) {
        EXPECT_TRUE(std::isnan(out)) << variant.name << " " << i;
      } else {
        EXPECT_EQ(out, code) << variant.name << " " << i;
      }
    }
  }
}

TEST(E4m3, NaNStaysWithTheRowsThatSeeIt) {
  for (const Variant& variant : flash_variants_of(parse_problem("fwd e4m3 b1 h1 s9 d16"))) {
    Tensors t("fwd e4m3 causal b1 h1 s9 d16", 1);
    t.k[5 * 16] = std::byte{0x7f};
    run(t, variant.options);
    EXPECT_FALSE(std::isnan(t.at(t.o, 4 * 16))) << variant.name;
    EXPECT_TRUE(std::isnan(t.at(t.o, 5 * 16))) << variant.name;
    EXPECT_TRUE(std::isnan(t.lse[8])) << variant.name;
  }
}

TEST(E4m3, FactorsThatAreNotFiniteAreRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float of_heads[4] = {1, 1, kNan, 1}, one = kInfinity;
  for (const char* backend : {"cpu", "reference"}) {
    Tensors t("fwd e4m3 b2 hq4 hk2 s9 d8");
    ForwardArgs args = t.forward_args();
    const auto said = [&](const Descales& descales) {
      args.descales = descales;
      return message<InvalidArgument>([&] { forward(plan(t.p, {.backend = backend}), args); });
    };
    EXPECT_EQ(said({.q = {of_heads, 2, 1}}),
              "q_descale has nan at batch 1, key head 0; accepted: finite numbers");
    EXPECT_EQ(said({.k = {of_heads, 1, 2}}),
              "k_descale has nan at batch 0, key head 1; accepted: finite numbers");
    EXPECT_EQ(said({.v = {&one}}),
              "v_descale has inf at batch 0, key head 0; accepted: finite numbers");
  }
  Tensors t("fwd e4m3 b1 hq4 hk2 sq9 sk65 d8 descale_rows(64)");
  ForwardArgs args = t.forward_args();
  args.descales.k = {of_heads, 0, 1, 1};  // blocks 0 and 1 of heads 0 and 1
  EXPECT_EQ(message<InvalidArgument>([&] { forward(plan(t.p, {.backend = "cpu"}), args); }),
            "k_descale has nan at batch 0, key head 1, block 1; accepted: finite numbers");
}

TEST(E4m3, WhatIsNotBuiltIsRefusedByName) {
  const auto said = [](const char* line) {
    return message<InvalidArgument>([&] { plan(parse_problem(line)); });
  };
  EXPECT_NE(said("fwdbwd e4m3 h1 s8 d8").find("e4m3 has a forward alone"), std::string::npos);
  EXPECT_NE(said("bwd e4m3 h1 s8 d8").find("e4m3 has a forward alone"), std::string::npos);
  Tensors t("fwd e4m3 h1 s8 d8");
  ForwardArgs args = t.forward_args();
  args.descales.k.block = -1;
  EXPECT_NE(message<InvalidArgument>([&] { forward(plan(t.p), args); }).find("k_descale"),
            std::string::npos);
  args.descales.k.block = 0;
  args.descales.k.head = -1;
  EXPECT_NE(message<InvalidArgument>([&] { forward(plan(t.p), args); }).find("k_descale"),
            std::string::npos);
  args.descales.k = {reinterpret_cast<const float*>(reinterpret_cast<const char*>(&t.lse[0]) + 1)};
  EXPECT_NE(message<InvalidArgument>([&] { forward(plan(t.p), args); }).find("k_descale"),
            std::string::npos);
}

}  // namespace
}  // namespace dfa
