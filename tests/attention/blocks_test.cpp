// Lists of blocks by every engine of this processor.
#include "spec/blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Blocks, EveryProblemMeetsTheRuleByEveryVariant) {
  int ran = 0;
  for (const std::string& line : problem_lines("blocks.txt")) {
    Truths truths;
    for (const Variant& variant : flash_variants_of(parse_problem(line))) {
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name << ": " << line;
      ++ran;
    }
  }
  EXPECT_GE(ran, 28);
}

void expect_same_gradients(const std::string& one, const std::string& other) {
  Tensors a(one, 5), b(other, 5);
  run(a, {.backend = "cpu"});
  run(b, {.backend = "cpu"});
  for (std::int64_t i = 0; i < a.count(a.o); ++i) {
    ASSERT_NEAR(a.at(a.o, i), b.at(b.o, i), 2e-6) << one;
    ASSERT_NEAR(a.at(a.dq, i), b.at(b.dq, i), 2e-5) << one;
  }
  for (std::int64_t i = 0; i < a.count(a.k); ++i) {
    ASSERT_NEAR(a.at(a.dk, i), b.at(b.dk, i), 2e-5) << one;
    ASSERT_NEAR(a.at(a.dv, i), b.at(b.dv, i), 2e-5) << one;
  }
}

// Of a problem whose states the test says.
Problem with_states(const std::string& line, std::vector<std::int32_t> states) {
  Problem p = parse_problem(line);
  p.blocks->states = std::move(states);
  return p;
}

TEST(Blocks, AllBlocksAreNoMask) {
  const std::string plain = "fwdbwd fp32 causal b1 hq2 hk1 sq96 sk160 d64";
  expect_same_gradients(plain + " blocks(random,1,1,32x32)", plain);
}

// Bitmap 0 of blocks on the diagonal, whole ones below: a causal mask.
TEST(Blocks, BitmapsOfTheDiagonalAreCausal) {
  const std::string shape = "fwdbwd fp32 b1 hq2 hk1 sq96 sk96 d64";
  Tensors causal("fwdbwd fp32 causal b1 hq2 hk1 sq96 sk96 d64", 5);
  Tensors blocks(shape + " blocks(random,1,1,32x32,partial)", 5);
  constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;
  blocks.p.blocks->states = {0, kNone, kNone, kAll, 0, kNone, kAll, kAll, 0};
  blocks.blocks = BlockArrays(blocks.p);
  run(causal, {.backend = "cpu"});
  run(blocks, {.backend = "cpu"});
  for (std::int64_t i = 0; i < causal.count(causal.o); ++i) {
    ASSERT_NEAR(causal.at(causal.o, i), blocks.at(blocks.o, i), 2e-6);
    ASSERT_NEAR(causal.at(causal.dq, i), blocks.at(blocks.dq, i), 2e-5);
  }
  EXPECT_EQ(pairs_of_blocks(blocks.p), 96.0 * 97 / 2);
}

TEST(Blocks, RowsWithoutABlockAreZero) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const char* sink : {"", " sink"}) {
      Tensors t(std::string("fwdbwd fp32 b1 h1 sq96 sk70 d16 blocks(random,1,1,32x32)") + sink, 2);
      constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;
      t.p.blocks->states = {kAll, kNone, kAll, kNone, kNone, kNone, kNone, kNone, kAll};
      t.blocks = BlockArrays(t.p);
      run(t, {.backend = backend});
      const float unseeing = t.p.sink ? t.sinks[0] : -INFINITY;
      for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(t.lse[i], unseeing);
      for (std::int64_t x = 32 * 16; x < 64 * 16; ++x) {
        EXPECT_EQ(t.at(t.o, x), 0);
        EXPECT_EQ(t.at(t.dq, x), 0);
        EXPECT_EQ(t.at(t.dk, x), 0);  // nor has a query these keys
        EXPECT_EQ(t.at(t.dv, x), 0);
      }
      for (const std::size_t i : {0, 31, 64, 95}) EXPECT_TRUE(std::isfinite(t.lse[i]));
    }
  }
}

// What is in no list is not read: q, k, v and do are NaN there, and nobody else's bits change.
TEST(Blocks, NaNOfABlockThatIsInNoListReachesNobody) {
  const std::int64_t side = 64;
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    const std::string line = "fwdbwd " + dtype + " b1 h1 sq256 sk256 d16 blocks(random,1,1,64x64)";
    // Keys 64 to 127 are of queries 64 to 127 alone.
    constexpr std::int32_t kNone = kAbsentBlock, kAll = kFullBlock;
    const std::vector<std::int32_t> states = {kAll,  kNone, kAll, kNone, kNone, kAll,  kNone, kNone,
                                              kNone, kNone, kAll, kAll,  kAll,  kNone, kNone, kAll};
    for (const Variant& variant : flash_variants_of(with_states(line, states))) {
      Tensors clean(line, 4), poisoned(line, 4);
      for (Tensors* t : {&clean, &poisoned}) {
        t->p.blocks->states = states;
        t->blocks = BlockArrays(t->p);
      }
      expect_nan_stays(clean, poisoned, variant, side, 2 * side);
    }
  }
}

// A sample may have no row of it: lse of all others is held against what the lists let rows see.
TEST(Blocks, ARowOfBlocksThatNobodyComputedIsNoRowWithoutKeys) {
  Tensors t("fwd fp32 b1 h4 s256 d16 blocks(random,1,1,64x64)");
  run(t, {.backend = "cpu"});
  for (std::int64_t i = 64; i < 128; ++i) {
    const std::int64_t row = 2 * 256 + i;
    for (std::int64_t x = 0; x < 16; ++x) t.set(t.o, row * 16 + x, 0);
    t.lse[static_cast<std::size_t>(row)] = -INFINITY;
  }
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const CheckReport report =
        check_forward(t.p, t.forward_args(), {.max_flops = 1e4, .seed = seed});
    EXPECT_TRUE(report.sampled);
    EXPECT_FALSE(report.ok) << seed;
  }
}

TEST(Blocks, PlansSayWhatTheySkip) {
  const Plan plan = dfa::plan(parse_problem("fwd fp32 b1 h2 s1024 d64 blocks(random,0.25,1)"),
                              {.backend = "cpu"});
  // 16 of 64 blocks, each of two tiles of 64 queries.
  EXPECT_NE(plan.why.find("192 of 256 tiles of 64 by 128 are skipped"), std::string::npos)
      << plan.why;
  EXPECT_EQ(plan.forward_flops, 2.0 * 2 * 16 * 128 * 128 * (64 + 64));
  Problem p = parse_problem("fwd fp32 b1 h2 s1024 d64 blocks(128x128)");
  const Plan unknown = dfa::plan(p, {.backend = "cpu"});
  EXPECT_NE(unknown.why.find("in no list are skipped"), std::string::npos) << unknown.why;
  EXPECT_EQ(unknown.forward_flops, 0);
}

std::string refusal(const BlockLists& lists, Pass pass = Pass::forward_backward) {
  for (const char* backend : {"cpu", "reference"}) {
    Tensors t("fwdbwd fp32 b1 h1 s96 d16 blocks(random,1,1,32x32,partial)");
    t.p.pass = pass;
    ForwardArgs forward_args = t.forward_args();
    BackwardArgs backward_args = t.backward_args();
    if (pass != Pass::backward) forward_args.blocks = lists;
    backward_args.blocks = lists;
    try {
      const Plan plan = dfa::plan(t.p, {.backend = backend});
      if (pass == Pass::backward) {
        backward(plan, backward_args);
      } else {
        forward(plan, forward_args);
      }
    } catch (const InvalidArgument& error) {
      if (std::string(backend) == "reference") return error.what();
      continue;
    }
    return "";
  }
  return "";
}

TEST(Blocks, ListsThatAreNoneAreRefusedByName) {
  const Tensors t("fwdbwd fp32 b1 h1 s96 d16 blocks(random,1,1,32x32,partial)");
  const auto with = [&](const auto& change) {
    BlockArrays arrays = t.blocks;
    BlockLists lists = arrays.pointers();
    change(arrays, lists);
    const std::string text = refusal(lists);
    return text.empty() ? refusal(lists, Pass::backward) : text;
  };
  using Arrays = BlockArrays&;
  using Lists = BlockLists&;
  EXPECT_EQ(with([](Arrays, Lists) {}), "");
  EXPECT_EQ(with([](Arrays, Lists l) { l.kv_counts = nullptr; }),
            "pointer kv_counts is null; this problem has blocks");
  EXPECT_EQ(with([](Arrays, Lists l) { l.bits = nullptr; }),
            "pointer bits is null; this problem has blocks");
  EXPECT_EQ(with([](Arrays, Lists l) { l.q_indices = nullptr; }),
            "pointer q_indices is null; this problem has blocks");
  EXPECT_EQ(with([](Arrays a, Lists) { a.kv_counts[1] = 4; }),
            "blocks: kv_counts, list 1 of map 0: 4; accepted: 0 to 3");
  EXPECT_EQ(with([](Arrays a, Lists) { a.kv_counts[2] = -1; }),
            "blocks: kv_counts, list 2 of map 0: -1; accepted: 0 to 3");
  EXPECT_EQ(with([](Arrays a, Lists) { a.kv_indices[2] = 3; }),
            "blocks: kv_indices, list 0 of map 0: block 3; there are 3");
  EXPECT_EQ(with([](Arrays a, Lists) { a.kv_indices[1] = 0; }),
            "blocks: kv_indices, list 0 of map 0: block 0 behind 0; blocks ascend, each once");
  EXPECT_EQ(with([](Arrays a, Lists) { a.kv_bitmaps[4] = 2; }),
            "blocks: kv_bitmaps, list 1 of map 0: bitmap 2; there are 2");
  EXPECT_EQ(with([](Arrays a, Lists) { a.q_counts[2] = 2; }),
            "blocks: the lists by keys are not those by queries at block 2, 2 of map 0");
}

}  // namespace
}  // namespace dfa
