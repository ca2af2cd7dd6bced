#include "reference/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "reference/backend.h"
#include "reference/head.h"
#include "tensors.h"

namespace dfa {
namespace {

constexpr const char* kLine = "fwdbwd bf16 causal b1 hq2 hk1 sq70 sk70 d16";

void run(Tensors& t) {
  const Backend& reference = reference_backend();
  const Plan plan = reference.plan(t.p, {});
  reference.forward(plan, t.forward_args(), {});
  if (t.p.pass != Pass::forward) reference.backward(plan, t.backward_args(), {});
}

std::string verdict(Tensors& t) {
  std::string text;
  CheckReport report = check_forward(t.p, t.forward_args());
  if (!report.ok) text += report.worst().name;
  if (t.p.pass != Pass::forward) {
    report = check_backward(t.p, t.backward_args());
    if (!report.ok) text += report.worst().name;
  }
  return text;
}

// Runs a different problem on the same tensors: the typical faults are the right answer to another
// question.
std::string verdict_of_wrong_problem(const char* line,
                                     const std::function<void(Problem&)>& change) {
  Tensors t(line);
  const Problem asked = t.p;
  change(t.p);
  run(t);
  t.p = asked;
  return verdict(t);
}

TEST(Check, TheTruthPassesInEveryTypeAndMask) {
  for (const char* line :
       {kLine, "fwdbwd fp32 b2 hq3 hk3 sq33 sk65 d24 dv8", "fwdbwd fp16 b1 hq2 hk2 sq65 sk33 d16",
        "fwdbwd fp16 causal b1 hq1 hk1 sq9 sk4 d8", "fwd bf16 b1 hq1 hk1 sq40 sk40 d8 window(3,2)",
        "fwdbwd tf32 causal b1 hq1 hk1 sq20 sk20 d8"}) {
    Tensors t(line);
    run(t);
    EXPECT_EQ(verdict(t), "") << line;
  }
}

// An implementation in the element's own precision is what the rule is made for.
TEST(Check, NaiveLowPrecisionPasses) {
  Tensors t("fwd bf16 b1 hq2 hk2 sq64 sk96 d32");
  for (std::int64_t h = 0; h < 2; ++h) {
    const Head<float> naive(t.p, t.q.data(), t.k.data(), t.v.data(), nullptr, 0, h);
    for (std::int64_t i = 0; i < 64; ++i) {
      const auto row = naive.forward(i);
      for (std::int64_t x = 0; x < 32; ++x) {
        t.set(t.o, (h * 64 + i) * 32 + x, row.o[static_cast<std::size_t>(x)]);
      }
    }
  }
  ForwardArgs args = t.forward_args();
  args.lse = nullptr;  // its scores are rounded, so its lse is not to the rule
  EXPECT_TRUE(check_forward(t.p, args).ok);
}

TEST(Check, CatchesADroppedKeyTile) {
  EXPECT_NE(verdict_of_wrong_problem("fwd bf16 b1 hq1 hk1 sq64 sk512 d16",
                                     [](Problem& p) {
                                       p.k_strides = p.k();
                                       p.v_strides = p.v();
                                       p.sk = 480;
                                     }),
            "");
}

TEST(Check, CatchesAMaskThatIsOffByOne) {
  const auto off = [](std::int64_t right) {
    return [right](Problem& p) { p.mask = Mask{-1, right}; };
  };
  EXPECT_NE(verdict_of_wrong_problem(kLine, off(1)), "");
  const auto window = [](Problem& p) { p.mask.left -= 1; };
  EXPECT_NE(verdict_of_wrong_problem("fwdbwd bf16 b1 hq1 hk1 sq70 sk70 d16 window(9,9)", window),
            "");
}

TEST(Check, CatchesAWrongScale) {
  EXPECT_NE(verdict_of_wrong_problem(kLine, [](Problem& p) { p.scale = 0.26; }), "");
}

TEST(Check, CatchesAMissingRescale) {
  Tensors t("fwd bf16 b1 hq1 hk1 sq8 sk128 d16");
  run(t);
  // The second half's sum kept at the first half's maximum, with o not rescaled: off by exp(m1 -
  // m2).
  for (std::int64_t x = 0; x < 16; ++x) t.set(t.o, 3 * 16 + x, 1.5f * t.at(t.o, 3 * 16 + x));
  EXPECT_EQ(verdict(t), "o");
}

TEST(Check, CatchesSwappedHeads) {
  Tensors t(kLine);
  run(t);
  std::swap_ranges(t.o.begin(), t.o.begin() + static_cast<std::ptrdiff_t>(t.o.size() / 2),
                   t.o.begin() + static_cast<std::ptrdiff_t>(t.o.size() / 2));
  EXPECT_NE(verdict(t).find("o"), std::string::npos);
}

TEST(Check, CatchesOneWrongElementInEachTensor) {
  for (const auto& [name, tensor] : {std::pair{"o", &Tensors::o},
                                     {"dq", &Tensors::dq},
                                     {"dk", &Tensors::dk},
                                     {"dv", &Tensors::dv}}) {
    Tensors t(kLine);
    run(t);
    auto& data = t.*tensor;
    t.set(data, 37, t.at(data, 37) + 0.25f);
    EXPECT_EQ(verdict(t), name);
  }
}

TEST(Check, CatchesNonFiniteWhereFiniteAndTheReverse) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity}) {
    Tensors t(kLine);
    run(t);
    t.set(t.o, 5, bad);
    EXPECT_EQ(verdict(t), "o");
  }
  Tensors empty_row("fwd fp32 causal b1 hq1 hk1 sq3 sk2 d8");
  run(empty_row);
  empty_row.lse[0] = -1e30f;
  EXPECT_EQ(verdict(empty_row), "lse");
  Tensors poisoned("fwd fp32 b1 hq1 hk1 sq2 sk3 d8");
  poisoned.set(poisoned.q, 0, nan);
  run(poisoned);
  EXPECT_EQ(verdict(poisoned), "");  // NaN in, NaN out
  poisoned.set(poisoned.o, 0, 0.0f);
  EXPECT_EQ(verdict(poisoned), "o");  // NaN in, a number out
}

TEST(Check, CatchesALogSumExpOffByThreeTimesItsBound) {
  Tensors t(kLine);
  run(t);
  t.lse[69] += 3e-5f * (1 + std::fabs(t.lse[69]));
  EXPECT_EQ(verdict(t), "lse");
}

TEST(Check, CatchesAGradientWithoutItsScale) {
  Tensors t(kLine);
  run(t);
  for (std::int64_t i = 0; i < t.count(t.dk); ++i) t.set(t.dk, i, 4 * t.at(t.dk, i));
  EXPECT_EQ(verdict(t), "dk");
}

TEST(Check, ASampleStillCatchesASystematicFault) {
  Tensors t("fwdbwd bf16 causal b2 hq4 hk2 sq200 sk200 d16");
  run(t);
  const CheckOptions little{.max_flops = 1e5, .seed = 3};
  CheckReport report = check_forward(t.p, t.forward_args(), little);
  EXPECT_TRUE(report.ok) << report.summary();
  EXPECT_TRUE(report.sampled);
  report = check_backward(t.p, t.backward_args(), little);
  EXPECT_TRUE(report.ok) << report.summary();
  EXPECT_TRUE(report.sampled);
  for (std::int64_t i = 0; i < t.count(t.dv); ++i) t.set(t.dv, i, 1.1f * t.at(t.dv, i));
  EXPECT_FALSE(check_backward(t.p, t.backward_args(), little).ok);
}

}  // namespace
}  // namespace dfa
