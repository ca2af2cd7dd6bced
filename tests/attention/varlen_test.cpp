// Packed sequences by every engine of this processor.
#include <gtest/gtest.h>

#include <cstring>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Varlen, EverySequenceMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("varlen.txt")) {
    Truths truths;
    for (const Variant& variant : variants_of(parse_problem(line))) {
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name;
    }
  }
}

// Sequences of one length that follow each other are a dense batch [b, s, h, d].
TEST(Varlen, EqualLengthsHaveTheBitsOfADenseBatch) {
  Tensors packed("fwdbwd bf16 causal hq4 hk2 d64 lens(70,70,70)", 5);
  Tensors dense("fwdbwd bf16 causal b3 hq4 hk2 s70 d64 layout(bshd)", 5);
  run(packed, {.backend = "cpu"});
  run(dense, {.backend = "cpu"});
  EXPECT_TRUE(packed.o == dense.o);
  EXPECT_TRUE(packed.dq == dense.dq);
  EXPECT_TRUE(packed.dk == dense.dk);
  EXPECT_TRUE(packed.dv == dense.dv);
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const float* of_packed = packed.lse.data() + h * 210 + b * 70;
      const float* of_dense = dense.lse.data() + (b * 4 + h) * 70;
      EXPECT_EQ(0, std::memcmp(of_packed, of_dense, 70 * sizeof(float)));
    }
  }
}

// What a call says of its sequences, or an empty text where it runs.
std::string refused(const std::vector<std::int32_t>& begins, const std::int32_t* used = nullptr,
                    bool missing = false) {
  Tensors t("fwd fp32 h1 d16 lens(4,6,5)", 1);
  ForwardArgs args = t.forward_args();
  args.sequences.cu_seqlens_q = missing ? nullptr : begins.data();
  args.sequences.seqused_k = used;
  try {
    forward(plan(t.p, {.backend = "cpu"}), args);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Varlen, WhatSaysWhereSequencesLieIsHeldAgainstTheTensors) {
  EXPECT_EQ(refused({0, 4, 10, 15}), "");
  EXPECT_EQ(refused({1, 4, 9, 12}), "");
  EXPECT_EQ(refused({0, 4, 3, 15}), "cu_seqlens_q falls from 4 to 3 of sequence 1");
  EXPECT_EQ(refused({0, 4, 10, 16}),
            "cu_seqlens_q ends at 16, but the tensor has 15 rows, at the end of sequence 2");
  EXPECT_EQ(refused({-1, 4, 10, 15}), "cu_seqlens_q begins with -1 of sequence 0");
  EXPECT_EQ(refused({0, 7, 10, 15}), "max_seqlen_q is 6, below the 7 rows of sequence 0");
  const std::int32_t used[] = {4, 7, 5};
  EXPECT_EQ(refused({0, 4, 10, 15}, used),
            "seqused_k is 7, but cu_seqlens_k leaves 6 rows of sequence 1");
  EXPECT_EQ(refused({}, nullptr, true),
            "pointer cu_seqlens_q is null; packed sequences say where they begin");
}

TEST(Varlen, RowsOfNoSequenceAreZeros) {
  Tensors t("fwdbwd fp32 h2 d16 lens(4,6,5)", 1);
  const std::int32_t used[] = {3, 0, 5};
  const Plan made = plan(t.p, {.backend = "cpu"});
  ForwardArgs args = t.forward_args();
  args.sequences.seqused_q = args.sequences.seqused_k = used;
  forward(made, args);
  BackwardArgs gradients = t.backward_args();
  gradients.sequences = args.sequences;
  backward(made, gradients);
  EXPECT_TRUE(check_forward(t.p, args).ok);
  EXPECT_TRUE(check_backward(t.p, gradients).ok);
  for (const std::int64_t row : {3, 4, 9}) {
    for (std::int64_t x = 0; x < 32; ++x) {
      for (const auto* tensor : {&t.o, &t.dq, &t.dk, &t.dv}) {
        EXPECT_EQ(t.at(*tensor, row * 32 + x), 0) << row;
      }
    }
    EXPECT_EQ(t.lse[static_cast<std::size_t>(row)], -INFINITY);
  }
}

}  // namespace
}  // namespace dfa
