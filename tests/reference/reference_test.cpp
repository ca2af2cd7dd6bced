#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/backend.h"
#include "tensors.h"

namespace dfa {
namespace {

void run(Tensors& t) {
  const Backend& reference = reference_backend();
  const Plan plan = reference.plan(t.p, {});
  reference.forward(plan, t.forward_args(), {});
  if (t.p.pass != Pass::forward) reference.backward(plan, t.backward_args(), {});
}

// Two keys, one query, by hand: logits 1 and 0 with scale 1 give weights e/(1+e) and 1/(1+e).
TEST(Reference, MatchesAHandCalculation) {
  Tensors t("fwd fp32 b1 hq1 hk1 sq1 sk2 d8 scale(1)");
  for (std::int64_t x = 0; x < 8; ++x) {
    t.set(t.q, x, x == 0 ? 1.0f : 0.0f);
    t.set(t.k, x, x == 0 ? 1.0f : 0.0f);
    t.set(t.k, 8 + x, 0.0f);
    t.set(t.v, x, 10.0f);
    t.set(t.v, 8 + x, static_cast<float>(x));
  }
  run(t);
  const double weight = std::exp(1.0) / (1 + std::exp(1.0));
  for (std::int64_t x = 0; x < 8; ++x) {
    EXPECT_NEAR(t.at(t.o, x), 10 * weight + static_cast<double>(x) * (1 - weight), 1e-6);
  }
  EXPECT_NEAR(t.lse[0], std::log(1 + std::exp(1.0)), 1e-6);
}

TEST(Reference, MaskedKeysDoNotCountAndEmptyRowsAreZero) {
  Tensors t("fwdbwd fp32 causal b1 hq1 hk1 sq3 sk2 d8");  // row 0 sees nothing, row 1 one key
  run(t);
  for (std::int64_t x = 0; x < 8; ++x) {
    EXPECT_EQ(t.at(t.o, x), 0.0f);
    EXPECT_EQ(t.at(t.dq, x), 0.0f);
    EXPECT_EQ(t.at(t.o, 8 + x), t.at(t.v, x));
  }
  EXPECT_EQ(t.lse[0], -std::numeric_limits<float>::infinity());
}

// loss = sum(do * o), differentiated by central differences through the forward.
double loss(Tensors& t) {
  const Backend& reference = reference_backend();
  Problem forward_only = t.p;
  forward_only.pass = Pass::forward;
  reference.forward(reference.plan(forward_only, {}), t.forward_args(), {});
  double sum = 0;
  for (std::int64_t i = 0; i < t.count(t.o); ++i) {
    sum += static_cast<double>(t.at(t.o, i)) * static_cast<double>(t.at(t.d_o, i));
  }
  return sum;
}

void expect_gradient(Tensors& t, std::vector<std::byte>& input,
                     const std::vector<std::byte>& gradient, const char* name) {
  constexpr float kStep = 1.0f / 64;
  for (std::int64_t i = 0; i < t.count(input); i += 5) {
    const float value = t.at(input, i);
    t.set(input, i, value + kStep);
    const double above = loss(t);
    t.set(input, i, value - kStep);
    const double below = loss(t);
    t.set(input, i, value);
    EXPECT_NEAR(t.at(gradient, i), (above - below) / (2.0 * kStep), 2e-3) << name << " " << i;
  }
}

TEST(Reference, GradientsAreThoseOfFiniteDifferences) {
  for (const char* line : {"fwdbwd fp32 causal b1 hq2 hk1 sq5 sk7 d8 dv16",
                           "fwdbwd fp32 b2 hq2 hk2 sq4 sk3 d16 dv8 window(1,1) scale(0.7)",
                           "fwdbwd fp32 causal b1 hq2 hk1 sq7 sk5 d8 chunk(2)",
                           "fwdbwd fp32 causal b1 hq2 hk1 sq7 sk5 d8 prefix(3)"}) {
    Tensors t(line);
    run(t);
    expect_gradient(t, t.q, t.dq, "dq");
    expect_gradient(t, t.k, t.dk, "dk");
    expect_gradient(t, t.v, t.dv, "dv");
  }
}

// Adding one vector to every key shifts each row's logits alike, so dk sums to zero over the keys.
TEST(Reference, KeyGradientsOfOneHeadSumToZero) {
  Tensors t("fwdbwd fp32 b1 hq1 hk1 sq9 sk11 d8");
  run(t);
  for (std::int64_t x = 0; x < 8; ++x) {
    double sum = 0;
    for (std::int64_t j = 0; j < 11; ++j) sum += static_cast<double>(t.at(t.dk, j * 8 + x));
    EXPECT_NEAR(sum, 0, 1e-6);
  }
}

}  // namespace
}  // namespace dfa
