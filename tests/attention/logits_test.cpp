// Softcap, ALiBi and sinks by every engine of this processor.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Logits, EveryProblemMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("logits.txt")) {
    for (const Variant& variant : variants_of(parse_problem(line))) {
      if (variant.options.algorithm == Algorithm::standard) continue;
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3), "") << variant.name;
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
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 alibi", {}),
            "pointer alibi_slopes is null; this problem has them");
  EXPECT_EQ(refused("fwd fp32 h2 s8 d16 alibi", {.alibi_slopes = values, .slopes_of_batch = 3}),
            "slopes_of_batch is 3; accepted: 0, or hq for slopes of each batch");
}

TEST(Logits, StandardAttentionAndMatrixTilesAreRefusedByName) {
  const Problem p = parse_problem("fwd bf16 h1 s8 d64 softcap(3)");
  EXPECT_THROW(plan(p, {.backend = "cpu", .algorithm = Algorithm::standard}), Unsupported);
  EXPECT_THROW(plan(p, {.backend = "cpu", .config = "target=cpu_amx"}), InvalidArgument);
}

}  // namespace
}  // namespace dfa
