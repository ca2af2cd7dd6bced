// Masks and logits that are texts, by every engine of this processor.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "attention/variants.h"
#include "reference/head.h"
#include "spec/expression.h"

namespace dfa {
namespace {

TEST(UserText, EveryProblemMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("user_text.txt")) {
    Truths truths;
    for (const Variant& variant : flash_variants_of(parse_problem(line))) {
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name;
    }
  }
}

// The reference itself is run as a backend, too.
TEST(UserText, TheReferenceIsItsOwnRule) {
  if (!kJudged) GTEST_SKIP() << "values are not judged in this build";
  for (const std::string& line : problem_lines("user_text.txt")) {
    Tensors t(line, 3);
    run(t, {.backend = "reference"});
    EXPECT_EQ(fault(t, {"reference", {}}, 3), "");
  }
}

struct Nearness {
  float o = 2e-6F, gradients = 2e-5F;
};

void expect_near(Tensors& a, Tensors& b, const Nearness& near, const std::string& lines) {
  ASSERT_EQ(a.count(a.o), b.count(b.o));
  for (std::int64_t i = 0; i < a.count(a.o); ++i) {
    ASSERT_NEAR(a.at(a.o, i), b.at(b.o, i), near.o) << lines;
    ASSERT_NEAR(a.at(a.dq, i), b.at(b.dq, i), near.gradients) << lines;
  }
  for (std::int64_t i = 0; i < a.count(a.k); ++i) {
    ASSERT_NEAR(a.at(a.dk, i), b.at(b.dk, i), near.gradients) << lines;
    ASSERT_NEAR(a.at(a.dv, i), b.at(b.dv, i), near.gradients) << lines;
  }
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    if (std::isinf(a.lse[i])) {
      ASSERT_EQ(a.lse[i], b.lse[i]) << lines;
    } else {
      ASSERT_NEAR(a.lse[i], b.lse[i], 2e-5F) << lines;
    }
  }
}

void expect_same(const std::string& text, const std::string& known,
                 std::function<void(Tensors&)> set = {}) {
  for (const Variant& variant : flash_variants_of(parse_problem(text))) {
    Tensors a(text, 5), b(known, 5);
    if (set) set(b);
    run(a, variant.options);
    run(b, variant.options);
    expect_near(a, b, {}, variant.name + ": " + text + " and " + known);
  }
}

TEST(UserText, MasksThatTheProblemKnowsAreTheSame) {
  const std::string some = "fwdbwd fp32 b1 hq2 hk1 sq96 sk140 d64 ";
  expect_same(some + "mask_mod(kv_idx <= q_idx + sk - sq)", some + "causal");
  expect_same(some + "mask_mod(abs(q_idx + sk - sq - kv_idx) <= 20)", some + "window(20,20)");
  expect_same(some + "mask_mod((q_idx + sk - sq) / 50 == kv_idx / 50)", some + "chunk(50)");
  expect_same(some + "mask_mod(kv_idx < 30 or kv_idx <= q_idx + sk - sq)",
              some + "causal prefix(30)");
  const std::string more_queries = "fwdbwd fp32 b1 hq2 hk1 sq140 sk96 d64 ";  // some see nothing
  expect_same(more_queries + "mask_mod(kv_idx <= q_idx + sk - sq)", more_queries + "causal");
  const std::string packed = "fwdbwd fp32 hq2 hk1 d64 lens(33,128,5) lens_k(64,3,200) ";
  expect_same(packed + "mask_mod(kv_idx <= q_idx + sk - sq)", packed + "causal");
}

TEST(UserText, LogitsThatTheProblemKnowsAreTheSame) {
  const std::string some = "fwdbwd fp32 causal b2 hq2 hk1 sq70 sk90 d64 ";
  expect_same(some + "score_mod(30.0f * tanhf(score / 30.0f))", some + "softcap(30)");
  expect_same(
      some + "score_mod(score - (h == 0 ? 0.25f : 0.0625f) * abs(q_idx + sk - sq - kv_idx))",
      some + "alibi", [](Tensors& t) {
        t.slopes = {0.25F, 0.0625F, 0.25F, 0.0625F};
      });
  expect_same(some + "score_mod(score)", some);
  expect_same(some + "score_mod(kv_idx % 2 == 0 ? score : -INFINITY)",
              some + "mask_mod(kv_idx % 2 == 0)");
  expect_same(some + "score_mod(3 * score) softcap(5) sink", some + "scale(0.375) softcap(5) sink");
}

TEST(UserText, RowsThatSeeNothingAreZero) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const char* text : {"mask_mod(q_idx % 3 != 0)", "mask_mod(false)",
                             "score_mod(q_idx % 3 != 0 ? score : -INFINITY)"}) {
      Tensors t(std::string("fwdbwd fp32 b1 h2 sq30 sk70 d16 ") + text, 2);
      run(t, {.backend = backend});
      const bool all = std::string(text) == "mask_mod(false)";
      for (std::int64_t i = 0; i < 60; ++i) {
        const bool blind = all || i % 30 % 3 == 0;
        const float lse = t.lse[static_cast<std::size_t>(i)];
        if (blind) {
          EXPECT_EQ(lse, -INFINITY) << text;
        } else {
          EXPECT_TRUE(std::isfinite(lse)) << text;
        }
        for (std::int64_t x = i * 16; x < (i + 1) * 16; ++x) {
          if (blind) {
            EXPECT_EQ(t.at(t.o, x), 0) << text;
            EXPECT_EQ(t.at(t.dq, x), 0) << text;
          } else {
            EXPECT_TRUE(std::isfinite(t.at(t.o, x))) << text;
            EXPECT_TRUE(std::isfinite(t.at(t.dq, x))) << text;
          }
        }
      }
      for (std::int64_t i = 0; i < t.count(t.dk); ++i) {
        EXPECT_TRUE(std::isfinite(t.at(t.dk, i))) << text;
        EXPECT_TRUE(std::isfinite(t.at(t.dv, i))) << text;
      }
    }
  }
}

// Tiles that a text hides whole come into no sum: 768 is a whole number of every engine's blocks.
TEST(UserText, NaNOfKeysThatATextHidesReachesNobody) {
  const std::int64_t chunk = 768;
  for (const std::string dtype : {"fp32", "bf16"}) {
    const std::string line = "fwdbwd " + dtype +
                             " causal b1 h1 sq2304 sk2304 d16 mask_mod(q_idx / 768 == kv_idx / 768)"
                             " score_mod(score * 1.5f)";
    for (const Variant& variant : flash_variants_of(parse_problem(line))) {
      Tensors clean(line, 4), poisoned(line, 4);
      expect_nan_stays(clean, poisoned, variant, chunk, 2 * chunk);
    }
  }
}

// Where nobody looks a text may be no number, and its derivative none or infinite.
TEST(UserText, WhatATextSaysOfHiddenPairsIsNeverSeen) {
  const std::string some = "fwdbwd fp32 b1 hq2 hk1 sq37 sk70 d16 causal ";
  const std::string before = "(q_idx + sk - sq - kv_idx)";
  for (const std::string& text : {"score_mod(score * sqrt(float" + before + "))",
                                  "score_mod(score / (" + before + " < 0 ? 0.0f : 2.0f))",
                                  "score_mod(" + before + " < 0 ? log(-1.0f) * score : score)"}) {
    for (const Variant& variant : flash_variants_of(parse_problem(some + text))) {
      Tensors t(some + text, 6);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 6), "") << variant.name;
      for (const auto tensor : {&Tensors::o, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
        for (std::int64_t i = 0; i < t.count(t.*tensor); ++i) {
          ASSERT_TRUE(std::isfinite(t.at(t.*tensor, i))) << text << variant.name;
        }
      }
    }
  }
}

// The truth's gradients against differences of its outputs, for texts that are smooth.
TEST(UserText, TheReferencesGradientsAreDifferencesOfItsOutput) {
  for (const std::string text :
       {"12.0f * tanh(score / 3) + 0.1f * (q_idx - kv_idx)", "score * score / (2 + cos(score))",
        "exp(0.3f * score) - log(4 + sin(score)) * sqrt(2 + score * score)",
        "pow(2 + score * score, 0.7f) * (kv_idx % 2 == 0 ? -score : 1 / (3 + score * score))"}) {
    const std::string line = "fwdbwd fp32 b1 h1 sq3 sk5 d8 scale(1) score_mod(" + text + ")";
    Tensors t(line, 9);
    // Loss: the sum of o * do.
    const auto loss = [&] {
      const Head<double> head(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, 0);
      double sum = 0;
      for (std::int64_t i = 0; i < 3; ++i) {
        const auto row = head.forward(i);
        for (std::int64_t x = 0; x < 8; ++x) {
          sum += row.o[static_cast<std::size_t>(x)] * t.at(t.d_o, i * 8 + x);
        }
      }
      return sum;
    };
    const Head<double> head(t.p, t.q.data(), t.k.data(), t.v.data(), t.d_o.data(), 0, 0);
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto row = head.forward(i);
      double delta = 0;  // of an o that is not rounded
      for (std::int64_t x = 0; x < 8; ++x) {
        delta += row.o[static_cast<std::size_t>(x)] * t.at(t.d_o, i * 8 + x);
      }
      const auto gradient = head.dq(i, row.lse, delta);
      for (std::int64_t x = 0; x < 8; ++x) {
        const float at = t.at(t.q, i * 8 + x), step = 0x1p-10F;
        t.set(t.q, i * 8 + x, at + step);
        const double high = loss(), above = t.at(t.q, i * 8 + x);
        t.set(t.q, i * 8 + x, at - step);
        const double low = loss(), below = t.at(t.q, i * 8 + x);
        t.set(t.q, i * 8 + x, at);
        const double slope = (high - low) / (above - below);
        EXPECT_NEAR(gradient.dq[static_cast<std::size_t>(x)], slope, 1e-4 * (1 + std::fabs(slope)))
            << text;
      }
    }
  }
}

// A derivative that is not the text's is found: gradients of one text, judged by another that
// differs in nothing that a forward shows.
TEST(UserText, AWrongDerivativeIsFound) {
  const std::string some = "fwdbwd fp32 b1 hq2 hk1 sq70 sk90 d64 ";
  Tensors t(some + "score_mod(score * score * 0.25f)", 5);
  run(t, {.backend = "cpu"});
  ASSERT_TRUE(check_backward(t.p, t.backward_args()).ok);
  const auto times = [&](std::vector<std::byte>& gradient, float factor) {
    for (std::int64_t i = 0; i < t.count(gradient); ++i)
      t.set(gradient, i, t.at(gradient, i) * factor);
  };
  times(t.dq, 0.5F);
  EXPECT_FALSE(check_backward(t.p, t.backward_args()).ok);
  times(t.dq, 2.0F);
  ASSERT_TRUE(check_backward(t.p, t.backward_args()).ok);
  times(t.dk, 1.01F);
  EXPECT_FALSE(check_backward(t.p, t.backward_args()).ok);
}

// A mask that is wrong by one pair is found, too.
TEST(UserText, AWrongMaskIsFound) {
  const std::string some = "fwd fp32 b1 hq2 hk1 sq70 sk90 d64 ";
  Tensors t(some + "mask_mod(kv_idx <= q_idx)", 5);
  run(t, {.backend = "cpu"});
  ASSERT_TRUE(check_forward(t.p, t.forward_args()).ok);
  t.p.mask_mod = "kv_idx<q_idx||kv_idx==0";
  EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
}

TEST(UserText, WhatTakesNoTextSaysSo) {
  const Problem p = parse_problem("fwd bf16 h1 s8 d64 mask_mod(kv_idx <= q_idx)");
  EXPECT_EQ(
      message<Unsupported>([&] { plan(p, {.backend = "cpu", .algorithm = Algorithm::standard}); }),
      "backend cpu: standard attention takes plain logits alone; leave algorithm to auto");
  EXPECT_NE(
      message<InvalidArgument>([&] { plan(p, {.backend = "cpu", .config = "target=cpu_amx"}); }),
      "");
}

TEST(UserText, WrongTextsAreOneLineAtTheDoor) {
  Problem p = parse_problem("fwd fp32 h1 s8 d64");
  p.mask_mod = "kv_idx <= ";
  EXPECT_EQ(message<InvalidArgument>([&] { plan(p, {.backend = "cpu"}); }),
            "mask_mod: column 11: expected a value at the end");
  p.mask_mod = "";
  p.score_mod = "score\n+ h ? ";
  EXPECT_EQ(message<InvalidArgument>([&] { plan(p, {.backend = "cpu"}); }),
            "score_mod: column 13: expected a value at the end");
}

// However it is spelt it is planned as one problem.
TEST(UserText, APlanHasTheShortestSpelling) {
  Problem p = parse_problem("fwd fp32 h1 s8 d64");
  p.mask_mod = " kv_idx\t<= (q_idx) ";
  EXPECT_EQ(plan(p, {.backend = "cpu"}).problem.mask_mod, "kv_idx<=q_idx");
}

}  // namespace
}  // namespace dfa
