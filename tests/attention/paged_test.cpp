// Paged keys and values by every engine of this processor. Pages lie in no order, and what is of no
// sequence is NaN (Tensors).
#include <gtest/gtest.h>

#include <cmath>

#include "attention/variants.h"

namespace dfa {
namespace {

TEST(Paged, EveryProblemMeetsTheRuleByEveryVariant) {
  for (const std::string& line : problem_lines("paged.txt")) {
    Truths truths;
    for (const Variant& variant : flash_variants_of(parse_problem(line))) {
      Tensors t(line, 3);
      run(t, variant.options);
      EXPECT_EQ(fault(t, variant, 3, {.truths = &truths}), "") << variant.name << " " << line;
    }
  }
}

// The keys of a paged problem's sequences, one after the other.
void copy_pages(const Tensors& from, Tensors& to) {
  for (std::int64_t i = 0, row = 0; i < from.p.b; ++i) {
    const std::int64_t rows = from.seqused_k[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < rows; ++j, ++row) {
      const std::int64_t in_pages = from.row_in_pages(i, j);
      for (std::int64_t x = 0; x < from.p.hk * from.p.d; ++x) {
        to.set(to.k, row * from.p.hk * from.p.d + x,
               from.at(from.k, in_pages * from.p.hk * from.p.d + x));
        to.set(to.v, row * from.p.hk * from.p.d + x,
               from.at(from.v, in_pages * from.p.hk * from.p.d + x));
      }
    }
  }
}

TEST(Paged, HaveTheBitsOfTheSameKeysPacked) {
  const std::string line = "fwd bf16 causal hq4 hk2 d64 lens(5,1,70) lens_k(100,1,90)";
  Tensors paged(line + " page(16)", 5), packed(line, 5);
  copy_pages(paged, packed);
  run(paged, {.backend = "cpu"});
  run(packed, {.backend = "cpu"});
  EXPECT_TRUE(paged.o == packed.o);
  EXPECT_TRUE(paged.lse == packed.lse);
}

// Sequences that begin alike may name the same pages.
TEST(Paged, SequencesMayShareTheirFirstPages) {
  Tensors t("fwd bf16 causal hq4 hk2 d64 lens(5,1,9) lens_k(70,80,64) page(16)", 4);
  for (std::size_t i = 1; i < 3; ++i) {
    for (std::size_t n = 0; n < 3; ++n) t.block_table[i * 5 + n] = t.block_table[n];
  }
  run(t, {.backend = "cpu"});
  EXPECT_EQ(fault(t, {}, 4), "");
}

TEST(Paged, PagesOfOthersAreNotRead) {
  Tensors t("fwd fp32 hq2 hk1 d64 lens(5,1) lens_k(70,30) page(16)", 4);
  for (std::int64_t j = 0; j < 70; ++j) t.fill_row(t.row_in_pages(0, j), std::nanf(""));
  run(t, {.backend = "cpu"});
  for (std::int64_t x = 0; x < 2 * 64; ++x) EXPECT_TRUE(std::isfinite(t.at(t.o, 5 * 128 + x)));
}

TEST(Paged, ASequenceMayBeginBehindTheFirstRow) {
  Tensors t("fwd bf16 causal b3 hq4 hk2 sq2 sk70 d64 page(16)", 4);
  const std::vector<std::int32_t> pads{0, 17, 70};
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::int64_t pad = pads[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < pad; ++j) t.fill_row(t.row_in_pages(i, j), std::nanf(""));
  }
  ForwardArgs args = t.forward_args();
  args.sequences.leftpad_k = pads.data();
  forward(plan(t.p, {.backend = "cpu"}), args);
  const CheckReport report = check_forward(t.p, args);
  EXPECT_TRUE(report.ok) << report.summary();
  EXPECT_EQ(t.lse[4], -INFINITY);  // of the third, which has no key
}

// Under a window a server frees the pages behind it.
TEST(Paged, PagesBehindAWindowAreNotRead) {
  Tensors t("fwd bf16 b2 hq2 hk1 sq3 sk1100 d64 page(16) window(20,0)", 4);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 1100 - 3 - 20; ++j) {
      t.fill_row(t.row_in_pages(i, j), std::nanf(""));
    }
    for (std::int64_t n = 0; n < (1100 - 3 - 20) / 16; ++n) {
      t.block_table[static_cast<std::size_t>(i * t.p.table_columns() + n)] = -1;
    }
  }
  for (const Variant& variant : flash_variants_of(t.p)) {
    run(t, variant.options);
    EXPECT_EQ(fault(t, variant, 4), "") << variant.name;
  }
}

// The cache may be one half of a tensor [2, pages, page, hk, d], or lie heads first.
TEST(Paged, PagesMayLieApart) {
  const std::string line = "fwd bf16 causal hq4 hk2 d64 lens(5,1) lens_k(40,20) page(16)";
  for (const char* strides : {" strides_k(8192,64,128) strides_v(2112,1056,64)"}) {
    Tensors t(line + strides, 4);
    run(t, {.backend = "cpu"});
    EXPECT_EQ(fault(t, {}, 4), "") << strides;
  }
}

std::string said_of(Sequences sequences, const char* line = "fwd fp32 b2 h1 sq1 sk24 d16 page(8)") {
  Tensors t(line);
  ForwardArgs args = t.forward_args();
  args.sequences = sequences;
  try {
    forward(plan(t.p, {.backend = "cpu"}), args);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Paged, WhatIsMissingOrSaidTwiceIsRefused) {
  const std::int32_t table[] = {0, 1, 2, 3, 4, 5}, used[] = {20, 24}, begins[] = {0, 1, 2};
  const Sequences right{.seqused_k = used, .block_table = table, .table_row = 3};
  EXPECT_EQ(said_of(right), "");
  Sequences s = right;
  s.block_table = nullptr;
  EXPECT_EQ(said_of(s), "pointer block_table is null; paged sequences name their pages");
  s = right;
  s.seqused_k = nullptr;
  EXPECT_EQ(said_of(s), "pointer seqused_k is null; paged sequences say how long they are");
  s = right;
  s.cu_seqlens_k = begins;
  EXPECT_EQ(said_of(s), "cu_seqlens_k is given; accepted for paged problems: null");
  EXPECT_EQ(said_of(right, "fwd fp32 b2 h1 sq2 sk24 d16 packed(3,48) page(8)"),
            "pointer cu_seqlens_q is null; packed sequences say where they begin");
  s = {.cu_seqlens_q = begins, .cu_seqlens_k = begins, .block_table = table};
  EXPECT_EQ(said_of(s, "fwd fp32 h1 d16 lens(1,1)"),
            "block_table and leftpad_k are of paged problems; accepted: null");
}

TEST(Paged, StandardAttentionIsRefusedByName) {
  const Problem p = parse_problem("fwd bf16 h1 s8 d64 page(8)");
  EXPECT_THROW(plan(p, {.backend = "cpu", .algorithm = Algorithm::standard}), Unsupported);
}

}  // namespace
}  // namespace dfa
