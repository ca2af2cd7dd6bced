// Chunks and prefixes by every engine of this processor.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/variants.h"

namespace dfa {
namespace {

bool has_standard(const Problem& p) { return !p.packed() && p.plain_logits(); }

TEST(Masks, EveryProblemMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("masks.txt")) {
    Truths truths;
    for (const Variant& variant : variants_of(parse_problem(line))) {
      Tensors t(line, 3);
      if (variant.options.algorithm == Algorithm::standard && !has_standard(t.p)) continue;
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name << ": " << line;
    }
  }
}

void expect_equal(const std::string& one, const std::string& other) {
  Tensors a(one, 5), b(other, 5);
  run(a, {.backend = "cpu"});
  run(b, {.backend = "cpu"});
  const std::string lines = one + " and " + other;
  for (std::int64_t i = 0; i < a.count(a.o); ++i) {
    ASSERT_NEAR(a.at(a.o, i), b.at(b.o, i), 2e-6) << lines;
    ASSERT_NEAR(a.at(a.dq, i), b.at(b.dq, i), 2e-5) << lines;
  }
  for (std::int64_t i = 0; i < a.count(a.k); ++i) {
    ASSERT_NEAR(a.at(a.dk, i), b.at(b.dk, i), 2e-5) << lines;
    ASSERT_NEAR(a.at(a.dv, i), b.at(b.dv, i), 2e-5) << lines;
  }
}

// Masks that other words say, too.
TEST(Masks, SaidInOtherWordsTheyAreTheSame) {
  const std::string square = "fwdbwd fp32 causal b1 hq2 hk1 sq96 sk96 d64";
  expect_equal(square + " chunk(96)", square);
  expect_equal(square + " prefix(1)", square);  // all see the first key
  expect_equal(square + " prefix(96)", "fwdbwd fp32 b1 hq2 hk1 sq96 sk96 d64");
  expect_equal(square + " chunk(1)", "fwdbwd fp32 b1 hq2 hk1 sq96 sk96 d64 window(0,0)");
  // Chunks of packed rows that follow each other are sequences.
  expect_equal("fwdbwd fp32 causal hq2 hk1 d64 lens(96) chunk(32)",
               "fwdbwd fp32 causal hq2 hk1 d64 lens(32,32,32)");
}

TEST(Masks, RowsThatSeeNothingAreZero) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const char* mask : {"chunk(4)", "causal chunk(4)"}) {
      Tensors t(std::string("fwdbwd fp32 b1 h1 sq30 sk10 d16 ") + mask, 2);
      run(t, {.backend = backend});
      for (std::int64_t i = 0; i < 20; ++i) {
        EXPECT_EQ(t.lse[static_cast<std::size_t>(i)], -INFINITY) << mask;
        for (std::int64_t x = i * 16; x < (i + 1) * 16; ++x) {
          EXPECT_EQ(t.at(t.o, x), 0) << mask;
          EXPECT_EQ(t.at(t.dq, x), 0) << mask;
        }
      }
      EXPECT_TRUE(std::isfinite(t.lse[20])) << mask;
    }
    Tensors t("fwd fp32 causal b1 h1 sq30 sk10 d16 prefix(2)", 2);  // all see the prefix
    run(t, {.backend = backend});
    for (const float lse : t.lse) EXPECT_TRUE(std::isfinite(lse));
  }
}

// Tiles of other chunks come into no sum: 768 is a whole number of every engine's blocks.
TEST(Masks, NaNOfAnotherChunkReachesNobody) {
  const std::int64_t chunk = 768;
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string line = "fwdbwd " + dtype + " causal b1 h1 sq2304 sk2304 d16 chunk(768)";
    for (const Variant& variant : flash_variants_of(parse_problem(line))) {
      Tensors clean(line, 4), poisoned(line, 4);
      expect_nan_stays(clean, poisoned, variant, chunk, 2 * chunk);
    }
  }
}

// Pages of earlier chunks may be anybody's.
TEST(Masks, PagesOfEarlierChunksAreNotRead) {
  for (const char* backend : {"cpu", "reference"}) {
    Tensors t("fwd fp32 causal hq2 hk1 d64 lens(2) lens_k(70) page(16) chunk(64)", 4);
    for (std::size_t column = 0; column < 4; ++column) t.block_table[column] = -1;
    run(t, {.backend = backend});
    for (std::int64_t x = 0; x < 2 * 2 * 64; ++x) EXPECT_TRUE(std::isfinite(t.at(t.o, x)));
  }
}

}  // namespace
}  // namespace dfa
