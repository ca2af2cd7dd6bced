// Dropout of the probabilities by every engine of this processor, held against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "attention/variants.h"

namespace dfa {
namespace {

bool takes_standard(const Problem& p) { return !p.paged() && p.plain_logits(); }

TEST(Dropout, EveryProblemMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("dropout.txt")) {
    Truths truths;
    for (const Variant& variant : variants_of(parse_problem(line))) {
      if (variant.options.algorithm == Algorithm::standard &&
          !takes_standard(parse_problem(line))) {
        continue;
      }
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << line << " " << variant.name;
    }
  }
}

TEST(Dropout, TheReferenceIsRightByItsOwnRule) {
  for (const char* line : {"fwdbwd fp32 causal b2 hq2 hk1 sq40 sk50 d32 dropout(0.3,5)",
                           "fwdbwd fp32 hq2 hk1 d64 lens(33,8,5) lens_k(64,3,20) dropout(0.4,2)"}) {
    Tensors t(line, 3);
    run(t, {.backend = "reference"});
    EXPECT_EQ(fault(t, {"reference", {}}, 3), "") << line;
  }
}

// Where scores are 0 and v is a row's unit vector, o says which probabilities are kept.
std::vector<bool> kept(const std::string& line, const PlanOptions& options,
                       const Logits& logits = {}) {
  Tensors t(line);
  for (std::int64_t i = 0; i < t.count(t.q); ++i) t.set(t.q, i, 0);
  for (std::int64_t i = 0; i < t.count(t.v); ++i) {
    t.set(t.v, i, i / t.p.dv % t.p.sk == i % t.p.dv ? 1 : 0);
  }
  ForwardArgs args = t.forward_args();
  args.logits.dropout = logits.dropout;
  args.logits.dropout_batch = logits.dropout_batch;
  forward(plan(t.p, options), args);
  std::vector<bool> mask;
  for (std::int64_t i = 0; i < t.count(t.o); ++i) mask.push_back(t.at(t.o, i) != 0);
  return mask;
}

// All pairs of 2 batches, 2 heads, 300 queries and 256 keys, which are the columns of v.
const std::string kSquare = " b2 hq2 hk2 sq300 sk256 d16 dv256";

TEST(Dropout, EveryEngineTileAndElementTypeDrawsTheSameMask) {
  const std::vector<bool> truth =
      kept("fwd fp32" + kSquare + " dropout(0.3,12345678901234)", {.backend = "reference"});
  for (const std::string dtype : {"fp32", "fp16", "bf16"}) {
    const std::string line = "fwd " + dtype + kSquare + " dropout(0.3,12345678901234)";
    for (const Variant& variant : variants_of(parse_problem(line))) {
      EXPECT_TRUE(truth == kept(line, variant.options)) << line << variant.name;
    }
    for (const int threads : {1, 3}) {
      EXPECT_TRUE(truth == kept(line, {.backend = "cpu", .threads = threads})) << line << threads;
    }
    for (const char* tile : {"block_q=48, block_k=96", "block_q=16, block_k=16"}) {
      const PlanOptions options{.config = std::string("target=cpu_portable, ") + tile};
      EXPECT_TRUE(truth == kept(line, options)) << line << tile;
    }
  }
}

// Within five standard deviations of a binomial.
TEST(Dropout, AsManyAreKeptAsAreAskedFor) {
  for (const double p : {0.001, 0.1, 0.5, 0.9}) {
    const std::vector<bool> mask =
        kept("fwd fp32" + kSquare + " dropout(" + std::to_string(p) + ",5)", {.backend = "cpu"});
    const auto all = static_cast<double>(mask.size());
    const auto ones = static_cast<double>(std::count(mask.begin(), mask.end(), true));
    EXPECT_NEAR(ones / all, 1 - p, 5 * std::sqrt(p * (1 - p) / all)) << p;
  }
}

// Neighbours in each direction agree as often as draws that know nothing of each other.
TEST(Dropout, MasksOfNeighboursAreIndependent) {
  const std::vector<bool> mask = kept("fwd fp32" + kSquare + " dropout(0.5,5)", {.backend = "cpu"});
  for (const std::size_t step : {1u, 8u, 16u, 32u, 256u, 8u * 256u, 16u * 256u, 300u * 256u}) {
    std::size_t equal = 0;
    for (std::size_t i = step; i < mask.size(); ++i) equal += mask[i] == mask[i - step] ? 1 : 0;
    const auto all = static_cast<double>(mask.size() - step);
    EXPECT_NEAR(static_cast<double>(equal) / all, 0.5, 2.5 / std::sqrt(all)) << step;
  }
}

TEST(Dropout, EachSeedOffsetAndBatchHasAMaskOfItsOwn) {
  const std::string line = "fwd fp32" + kSquare + " dropout(0.5,";
  const auto half = [](const std::vector<bool>& mask, int of) {
    const auto middle = static_cast<std::ptrdiff_t>(mask.size() / 2);
    return of == 0 ? std::vector<bool>(mask.begin(), mask.begin() + middle)
                   : std::vector<bool>(mask.begin() + middle, mask.end());
  };
  const std::uint64_t states[][2] = {{5, 0}, {5, 4}, {6, 0}, {5, 1ull << 32}, {5ull << 32, 0}};
  std::set<std::vector<bool>> masks;
  for (const auto& state : states) {
    const std::vector<bool> mask = kept(line + "9)", {.backend = "cpu"}, {.dropout = state});
    EXPECT_TRUE(masks.insert(half(mask, 0)).second);
    EXPECT_TRUE(masks.insert(half(mask, 1)).second);
    EXPECT_TRUE(mask == kept(line + "9)", {.backend = "reference"}, {.dropout = state}));
  }
  const std::vector<bool> mask = kept(line + "5)", {.backend = "cpu"});
  EXPECT_TRUE(mask == kept(line + "9)", {.backend = "cpu"}, {.dropout = states[0]}));
  for (const char* backend : {"cpu", "reference"}) {  // the second batch as the first
    const std::vector<bool> next = kept(line + "5)", {.backend = backend}, {.dropout_batch = 1});
    EXPECT_TRUE(half(mask, 1) == half(next, 0));
  }
}

// A sequence among others has the mask that its rows would have as that batch of dense ones.
TEST(Dropout, MasksOfPackedSequencesAreByTheirOwnRows) {
  Tensors dense("fwdbwd fp32 causal b2 hq2 hk1 sq40 sk40 d32 layout(bshd) dropout(0.3,5)", 4);
  Tensors packed("fwdbwd fp32 causal hq2 hk1 d32 lens(40,40) dropout(0.3,5)", 4);
  run(dense, {.backend = "cpu"});
  run(packed, {.backend = "cpu"});
  EXPECT_TRUE(dense.o == packed.o);
  EXPECT_TRUE(dense.dq == packed.dq);
  EXPECT_TRUE(dense.dv == packed.dv);
}

// dq, dk, dv against differences of sum(o * do) with the mask that stays, by the reference.
TEST(Dropout, GradientsAreThoseOfTheSameMask) {
  const std::string line =
      "fwdbwd fp32 causal b1 hq2 hk1 sq9 sk12 d8 softcap(4) sink dropout(0.4,3)";
  Tensors t(line, 6);
  run(t, {.backend = "cpu"});
  const auto loss = [&] {
    forward(plan(t.p, {.backend = "reference"}), t.forward_args());
    double sum = 0;
    for (std::int64_t i = 0; i < t.count(t.o); ++i) sum += double{t.at(t.o, i)} * t.at(t.d_o, i);
    return sum;
  };
  const auto compare = [&](std::vector<std::byte>& of, const std::vector<std::byte>& gradient) {
    for (std::int64_t i = 0; i < t.count(of); i += 3) {
      const float there = t.at(of, i), step = 1e-2f;
      t.set(of, i, there + step);
      const double above = loss();
      t.set(of, i, there - step);
      const double below = loss();
      t.set(of, i, there);
      EXPECT_NEAR((above - below) / (2 * step), t.at(gradient, i), 2e-3) << i;
    }
  };
  compare(t.q, t.dq);
  compare(t.k, t.dk);
  compare(t.v, t.dv);
}

TEST(Dropout, OfNothingIsNone) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    Tensors without("fwdbwd " + dtype + " causal b2 hq4 hk2 sq70 sk90 d64", 5);
    Tensors with("fwdbwd " + dtype + " causal b2 hq4 hk2 sq70 sk90 d64 dropout(0,17)", 5);
    EXPECT_TRUE(with.p == without.p);
    run(without, {.backend = "cpu"});
    run(with, {.backend = "cpu"});
    EXPECT_TRUE(without.o == with.o);
    EXPECT_TRUE(without.dq == with.dq);
  }
}

// lse is of all scores, and what a run leaves is the same in every run.
TEST(Dropout, LeavesLseAndBitsAsTheyAre) {
  const std::string line = "fwdbwd bf16 causal b2 hq4 hk2 sq70 sk90 d64";
  Tensors without(line, 5), with(line + " dropout(0.5,3)", 5), again(line + " dropout(0.5,3)", 5);
  for (Tensors* t : {&without, &with, &again}) {
    run(*t, {.backend = "cpu", .config = "target=cpu_portable"});
  }
  EXPECT_TRUE(without.lse == with.lse);
  EXPECT_FALSE(without.o == with.o);
  EXPECT_TRUE(again.o == with.o);
  EXPECT_TRUE(again.dk == with.dk);
}

std::string refusal(const std::string& line, const PlanOptions& options) {
  try {
    plan(parse_problem(line), options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Dropout, WhatCannotBeIsRefusedByName) {
  const std::string line = "fwdbwd fp32 h1 s8 d64 ";
  EXPECT_EQ(refusal(line + "dropout(0.1,1)", {.backend = "cpu",
                                              .algorithm = Algorithm::standard,
                                              .config = "probabilities=stored"}),
            "config: dropout takes probabilities that are computed anew, not stored");
  Problem p = parse_problem(line);
  for (const double wrong : {-0.1, 1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    p.dropout = wrong;
    EXPECT_THROW(plan(p, {.backend = "cpu"}), InvalidArgument) << wrong;
  }
  p.dropout = 0.5;
  Tensors t(to_line(p));
  ForwardArgs args = t.forward_args();
  const std::uint64_t state[3] = {};
  args.logits.dropout =
      reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const char*>(state) + 4);
  EXPECT_THROW(forward(plan(p, {.backend = "cpu"}), args), InvalidArgument);
  for (const std::int64_t batch : {std::int64_t{-1}, std::int64_t{1} << 31}) {
    args = t.forward_args();
    args.logits.dropout_batch = batch;
    EXPECT_THROW(forward(plan(p, {.backend = "cpu"}), args), InvalidArgument) << batch;
  }
  args = t.forward_args();
  const std::int32_t table[1] = {};  // would lie over what kernels draw by
  args.sequences.block_table = table;
  EXPECT_THROW(forward(plan(p, {.backend = "cpu"}), args), InvalidArgument);
  p.dropout = 0;
  p.dropout_seed = 5;
  EXPECT_THROW(plan(p, {.backend = "cpu"}), InvalidArgument);
}

}  // namespace
}  // namespace dfa
