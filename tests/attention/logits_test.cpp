// Softcap, ALiBi and sinks by every engine of this processor.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Logits, EveryProblemMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("logits.txt")) {
    Truths truths;
    for (const Variant& variant : variants_of(parse_problem(line))) {
      if (variant.options.algorithm == Algorithm::standard) continue;
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name;
    }
  }
}

// A sink of -inf is none, and slopes of 0 are no ALiBi.
TEST(Logits, NothingChangesWhereTheySayNothing) {
  Tensors plain("fwdbwd fp32 causal b1 hq2 hk1 s70 d64", 5);
  Tensors said("fwdbwd fp32 causal b1 hq2 hk1 s70 d64 sink", 5);
  said.sinks.assign(2, -INFINITY);
  run(plain, {.backend = "cpu"});
  run(said, {.backend = "cpu"});
  EXPECT_TRUE(plain.o == said.o);
  EXPECT_TRUE(plain.lse == said.lse);
  EXPECT_TRUE(plain.dq == said.dq);
  EXPECT_EQ(said.d_sinks, std::vector<float>(2, 0));
}

// Rows without keys have no weights that a sink of -inf, which is none, could take from.
TEST(Logits, ASinkThatIsNoneHasNoGradientFromRowsWithoutKeys) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const char* line : {"fwdbwd fp32 causal b1 hq2 hk1 sq9 sk4 d16 sink",
                             "fwdbwd fp32 causal hq2 hk1 d16 lens(9,3) lens_k(4,0) sink"}) {
      Tensors t(line, 6);
      t.sinks = {-INFINITY, 0.5f};
      run(t, {.backend = backend});
      EXPECT_EQ(t.d_sinks[0], 0) << backend << ": " << line;
      EXPECT_NE(t.d_sinks[1], 0) << backend << ": " << line;
      EXPECT_TRUE(check_backward(t.p, t.backward_args()).ok) << backend << ": " << line;
    }
  }
}

// A sink far above all logits takes nearly all of the weight; one far below takes none.
TEST(Logits, ASinkTakesItsShare) {
  for (const float sink : {-90.0f, 90.0f}) {
    Tensors t("fwdbwd fp32 b1 h1 sq3 sk20 d16 sink", 2);
    t.sinks = {sink};
    run(t, {.backend = "cpu"});
    EXPECT_TRUE(check_forward(t.p, t.forward_args()).ok);
    EXPECT_TRUE(check_backward(t.p, t.backward_args()).ok);
    if (sink > 0) {
      EXPECT_NEAR(t.lse[0], sink, 1e-4f);
    }
  }
}

// Rows that a bias hides whole are as rows of a mask that see nothing; the least finite value
// hides, too.
TEST(Logits, ABiasHidesKeys) {
  const int sq = 37, sk = 70;
  for (const std::string isa : {"auto", "reference"}) {
    Tensors t("fwdbwd fp32 b1 hq2 hk1 sq37 sk70 d64 bias(1,h)", 5);
    auto* bias = reinterpret_cast<float*>(t.bias.data());
    for (int i = 0; i < 2 * sq * sk; ++i) {
      if (i / sk % 3 == 0) bias[i] = i % 2 == 0 ? -INFINITY : -3.4e38f;
      if (i % 7 == 0) bias[i] = -INFINITY;
    }
    run(t, {.backend = isa == "auto" ? "cpu" : "reference"});
    EXPECT_TRUE(check_forward(t.p, t.forward_args()).ok);
    EXPECT_TRUE(check_backward(t.p, t.backward_args()).ok);
    EXPECT_EQ(t.lse[0], -INFINITY);
    EXPECT_EQ(t.at(t.o, 0), 0);
    EXPECT_EQ(t.at(t.dq, 0), 0);
    EXPECT_EQ(t.d_bias[7], 0);
  }
}

// A window said by a bias is a window.
TEST(Logits, ABiasSaysAMask) {
  Tensors masked("fwdbwd fp32 causal b2 hq2 hk1 sq40 sk50 d64", 5);
  Tensors biased("fwdbwd fp32 b2 hq2 hk1 sq40 sk50 d64 bias(1,1)", 5);
  auto* bias = reinterpret_cast<float*>(biased.bias.data());
  for (int i = 0; i < 40 * 50; ++i) bias[i] = i % 50 > i / 50 + 10 ? -INFINITY : 0.0f;
  run(masked, {.backend = "cpu"});
  run(biased, {.backend = "cpu"});
  for (std::int64_t i = 0; i < masked.count(masked.o); ++i) {
    ASSERT_NEAR(masked.at(masked.o, i), biased.at(biased.o, i), 2e-6) << i;
    ASSERT_NEAR(masked.at(masked.dq, i), biased.at(biased.dq, i), 2e-5) << i;
  }
}

// Strides of the bias and of its gradient, with gaps between rows that stay as they are.
void expect_strides_followed(const std::string& line) {
  Tensors dense(line, 5);
  run(dense, {.backend = "cpu"});
  Tensors wide(line, 5);
  const int rows = 2 * 2 * 9;
  std::vector<float> bias((rows + 1) * 32, NAN), d_bias(rows * 32, 7);
  for (int i = 0; i < rows * 20; ++i) {
    bias[static_cast<std::size_t>(i / 20 * 32 + i % 20)] =
        reinterpret_cast<const float*>(dense.bias.data())[i];
  }
  ForwardArgs forward_args = wide.forward_args();
  forward_args.logits.bias = bias.data();
  forward_args.logits.bias_strides = {2 * 9 * 32, 9 * 32, 32};
  forward(plan(wide.p, {.backend = "cpu"}), forward_args);
  EXPECT_TRUE(dense.o == wide.o);
  BackwardArgs args = wide.backward_args();
  args.logits = forward_args.logits;
  args.d_bias = d_bias.data();
  args.d_bias_strides = forward_args.logits.bias_strides;
  backward(plan(wide.p, {.backend = "cpu"}), args);
  EXPECT_TRUE(dense.dq == wide.dq);
  for (int i = 0; i < rows * 32; ++i) {
    const float wanted =
        i % 32 < 20 ? dense.d_bias[static_cast<std::size_t>(i / 32 * 20 + i % 32)] : 7;
    ASSERT_EQ(d_bias[static_cast<std::size_t>(i)], wanted) << i;
  }
}

TEST(Logits, StridesOfABiasAreFollowed) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    expect_strides_followed("fwdbwd " + dtype + " b2 hq2 hk1 sq9 sk20 d64 bias(b,h,fp32)");
  }
}

std::string refused(const char* line, Logits logits) {
  Tensors t(line);
  ForwardArgs args = t.forward_args();
  args.logits = logits;
  try {
    forward(plan(t.p, {.backend = "cpu"}), args);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Logits, MissingOrOddPointersAreRefused) {
  const float values[8] = {};
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 sink", {}), "pointer sinks is null; this problem has them");
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 bias(b,h)", {}),
            "pointer bias is null; this problem has one");
  EXPECT_EQ(
      refused("fwd fp32 h2 s8 d16 bias(b,h)", {.bias = reinterpret_cast<const char*>(values) + 2}),
      "pointer bias is not aligned to fp32");
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 alibi", {}),
            "pointer alibi_slopes is null; this problem has them");
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 alibi", {.alibi_slopes = values, .slopes_of_batch = 3}),
            "slopes_of_batch is 3; accepted: 0, or hq for slopes of each batch");
}

TEST(Logits, SlopesThatAreNotFiniteAreRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float shared[4] = {1, kNan, 1, 1}, of_batches[4] = {1, 1, 1, -kInfinity};
  EXPECT_EQ(refused("fwd fp32 b2 h2 s8 d16 alibi", {.alibi_slopes = shared}),
            "alibi_slopes has nan at index 1; accepted: finite numbers");
  EXPECT_EQ(
      refused("fwd fp32 b2 h2 s8 d16 alibi", {.alibi_slopes = of_batches, .slopes_of_batch = 2}),
      "alibi_slopes has -inf at index 3; accepted: finite numbers");
}

TEST(Logits, SinksThatLeaveNothingAreRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan[2] = {1, kNan}, infinite[2] = {kInfinity, 1}, none[2] = {-kInfinity, 1};
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 sink", {.sinks = nan}),
            "sinks has nan at index 1; accepted: finite numbers, and -inf for no sink");
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 sink", {.sinks = infinite}),
            "sinks has inf at index 0; accepted: finite numbers, and -inf for no sink");
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 sink", {.sinks = none}), "");
}

TEST(Logits, StandardAttentionAndMatrixTilesAreRefusedByName) {
  const Problem p = parse_problem("fwd bf16 h1 s8 d64 softcap(3)");
  EXPECT_THROW(plan(p, {.backend = "cpu", .algorithm = Algorithm::standard}), Unsupported);
  EXPECT_THROW(plan(p, {.backend = "cpu", .config = "target=cpu_amx"}), InvalidArgument);
}

}  // namespace
}  // namespace dfa
