// Paged keys and values: the problem line, and what is said of tables that cannot be.
#include <gtest/gtest.h>

#include "dfa/error.h"
#include "spec/flops.h"
#include "spec/lengths.h"
#include "spec/sequences.h"

namespace dfa {
namespace {

TEST(Pages, ALineSaysThemAndTheTensorsFollow) {
  const Problem p =
      parse_problem("fwd bf16 causal hq4 hk2 d64 dv32 lens(3,4,1) lens_k(40,16,0) page(16)");
  EXPECT_EQ(p.total_k, 64);
  EXPECT_EQ(p.k_batches(), 4);
  EXPECT_EQ(p.k_rows(), 16);
  EXPECT_EQ(p.table_columns(), 3);
  EXPECT_EQ(p.k(), (Strides{16 * 2 * 64, 64, 2 * 64}));
  EXPECT_EQ(p.v(), (Strides{16 * 2 * 32, 32, 2 * 32}));
  EXPECT_EQ(
      forward_flops(p),
      forward_flops(parse_problem("fwd bf16 causal hq4 hk2 d64 dv32 lens(3,4,1) lens_k(40,16,0)")));
}

TEST(Pages, DenseQueriesHavePagesForAllTheirKeys) {
  const Problem p = parse_problem("fwd bf16 b3 hq4 hk2 sq2 sk100 d64 page(16)");
  EXPECT_EQ(to_line(p), "fwd bf16 b3 hq4 hk2 sq2 sk100 d64 packed(6,336) page(16)");
  EXPECT_EQ(parse_problem(to_line(p)), p);
  EXPECT_EQ(p.q(), (Strides{0, 64, 256}));
}

// A table may be wider than the cache has pages: servers' are as wide as the longest context.
TEST(Pages, ASequenceMayBeAllowedMoreRowsThanThereAre) {
  EXPECT_EQ(parse_problem("fwd bf16 b2 h1 sq1 sk4096 d64 packed(2,64) page(16)").k_batches(), 4);
}

void expect_no_line(const std::string& line, const std::string& said) {
  try {
    parse_problem(line);
    ADD_FAILURE() << line;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
  }
}

TEST(Pages, WhatIsNoneIsRefused) {
  expect_no_line("fwd bf16 h1 s8 d64 page(0)", "page(N), N from 1");
  expect_no_line("fwd bf16 h1 s8 d64 page(9223372036854775807)", "page(N), N from 1");
  expect_no_line("fwd bf16 h1 s8 d64 page(x)", "page(N)");
  expect_no_line("fwd bf16 h1 s8 d64 page(8) page(8)", "a second page");
  expect_no_line("bwd bf16 h1 s8 d64 page(8)", "no backward; accepted: the pass fwd");
  expect_no_line("fwdbwd bf16 h1 d64 lens(8) page(8)", "no backward");
  expect_no_line("fwd bf16 h1 s8 d64 packed(8,12) page(8)", "does not divide the 12 rows");
  expect_no_line("fwd bf16 h1048576 s8 d64 page(1099511627776)", "more than 2^48 elements");
  expect_no_line("fwd bf16 b1099511627776 h1 s8 d64 page(8)", "pass 2^40");
  expect_no_line("fwd bf16 h1 s8 d64 page(8) layout(bshd)", "leave layout");
  EXPECT_THROW(require_dense(parse_problem("fwd bf16 h1 s8 d64 page(8)"), "this"), Unsupported);
}

// Two sequences with two queries each, over a cache of four pages of 8 rows.
struct Table {
  std::vector<std::int32_t> entries{0, 1, 2, 3, -1, -1};  // in 3 columns
  std::vector<std::int32_t> used{20, 8};
  std::vector<std::int32_t> pads{};
  std::string mask = "";
  std::string sk = "24";

  std::vector<SequencePlace> places() const {
    const std::string line = "fwd fp32 " + mask + " b2 h1 sq2 sk" + sk + " d8 packed(4,32) page(8)";
    return places_of(parse_problem(line), {.seqused_k = used.data(),
                                           .block_table = entries.data(),
                                           .table_row = 3,
                                           .leftpad_k = pads.empty() ? nullptr : pads.data()});
  }
};

std::string refused(const Table& table) {
  try {
    table.places();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Pages, PlacesCountRowsOfASequencesPages) {
  const auto places = Table{.pads = {5, 0}}.places();
  EXPECT_EQ(places[0].k_begin, 5);
  EXPECT_EQ(places[0].k_rows, 15);
  EXPECT_EQ(places[1].q_begin, 2);
  EXPECT_EQ(places[1].k_rows, 8);
}

TEST(Pages, TablesAndLengthsThatCannotBeAreRefused) {
  const std::string no_page = ", but the cache has pages 0 to 3";
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({.entries = {0, 0, 0, 0, 99, 99}}), "");  // what is not needed is not read
  EXPECT_EQ(refused({.entries = {0, 1, 4, 3, -1, -1}}),
            "block_table names page 4 in column 2 of sequence 0" + no_page);
  EXPECT_EQ(refused({.used = {20, 9}}),
            "block_table names page -1 in column 1 of sequence 1" + no_page);
  EXPECT_EQ(refused({.used = {25, 8}}),
            "seqused_k is 25, but block_table has 3 pages of 8 rows of sequence 0");
  EXPECT_EQ(refused({.used = {20, 8}, .sk = "19"}),
            "max_seqlen_k is 19, below the 20 rows of sequence 0");
  EXPECT_EQ(refused({.used = {-1, 8}}), "seqused_k is -1 of sequence 0");
  EXPECT_EQ(refused({.pads = {0, 9}}),
            "leftpad_k is 9; accepted: 0 to seqused_k, 8, of sequence 1");
}

// Under a window pages that no query sees may be gone.
TEST(Pages, PagesThatNoQuerySeesMayBeNone) {
  const Table gone{.entries = {-1, 1, 2, 3, -1, -1}, .mask = "causal"};
  EXPECT_NE(refused(gone), "");
  Table windowed = gone;
  windowed.mask = "window(10,0)";
  EXPECT_EQ(refused(windowed), "");
  windowed.mask = "window(11,0)";
  EXPECT_EQ(refused(windowed),
            "block_table names page -1 in column 0 of sequence 0, but the cache "
            "has pages 0 to 3");
}

}  // namespace
}  // namespace dfa
