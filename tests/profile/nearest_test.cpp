#include "profile/nearest.h"

#include <gtest/gtest.h>

namespace dfa::profile {
namespace {

Row row(const std::string& line, const std::string& label, double time_s) {
  Row r;
  r.problem = to_line(parse_problem(line));
  r.point.label = label;
  r.point.time_s = time_s;
  r.point.energy_j = 10 * time_s;
  r.point.memory_bytes = 1000;
  return r;
}

const std::vector<Row> kRows = {
    row("fwd bf16 b1 h16 s1024 d64", "a", 1),
    row("fwd bf16 b4 h16 s1024 d64", "b", 4),
    row("fwd bf16 b4 h16 s1024 d64", "c", 5),
    row("fwd bf16 causal b4 h16 s1024 d64", "d", 2),
    row("fwd bf16 b4 h16 s1024 d128", "e", 8),
    row("bwd bf16 b4 h16 s1024 d64", "f", 12),
    row("fwd bf16 b4 h16 s1024 d64 window(100,0)", "g", 1),
};

std::vector<std::string> labels(const Nearest& found) {
  std::vector<std::string> all;
  for (const Row& r : found.rows) all.push_back(r.point.label);
  return all;
}

Nearest of(const char* line) { return nearest(kRows, parse_problem(line)); }

TEST(Nearest, RowsOfTheVerySizesComeAsTheyAre) {
  const Nearest found = of("fwd bf16 b4 h16 s1024 d64");
  EXPECT_TRUE(found.exact);
  EXPECT_EQ(labels(found), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(found.rows[1].point.time_s, 5);
  EXPECT_EQ(found.rows[1].point.memory_bytes, 1000);
}

TEST(Nearest, OthersAreInProportionToTheWork) {
  const Nearest found = of("fwd bf16 b2 hq32 hk8 sq2048 sk1024 d64");
  EXPECT_FALSE(found.exact);
  EXPECT_EQ(found.problem, kRows[1].problem);
  EXPECT_EQ(labels(found), (std::vector<std::string>{"b", "c"}));
  EXPECT_DOUBLE_EQ(found.rows[0].point.time_s, 8);  // as many heads, twice the queries
  EXPECT_DOUBLE_EQ(*found.rows[0].point.energy_j, 80);
  EXPECT_EQ(found.rows[0].point.memory_bytes, 2000);
  EXPECT_EQ(labels(of("fwd bf16 b1 h24 s1024 d64")), (std::vector<std::string>{"a"}));
  EXPECT_EQ(labels(of("fwd bf16 causal b4 h16 s2048 d64")), (std::vector<std::string>{"d"}));
  EXPECT_DOUBLE_EQ(of("fwd bf16 causal b4 h16 s2048 d64").rows[0].point.time_s, 8);
  EXPECT_EQ(labels(of("bwd bf16 b4 h16 s900 d64")), (std::vector<std::string>{"f"}));
  EXPECT_EQ(labels(of("fwd bf16 b4 h16 s900 d64 window(100,0)")), (std::vector<std::string>{"g"}));
}

TEST(Nearest, WhatIsOfAnotherKindOrFarAwayIsNone) {
  for (const char* line :
       {"fwd bf16 b4 h16 s4200 d64", "fwd bf16 b4 h16 sq1024 sk200 d64",
        "fwd bf16 b32 h16 s1024 d64", "fwd fp16 b4 h16 s1024 d64", "fwd bf16 b4 h16 s1024 d96",
        "fwd bf16 b4 h16 s1024 d64 dv32", "fwd bf16 b4 h16 s1024 d64 window(101,0)",
        "fwdbwd bf16 b4 h16 s1024 d64"}) {
    EXPECT_TRUE(of(line).rows.empty()) << line;
    EXPECT_EQ(of(line).problem, "") << line;
  }
  EXPECT_EQ(labels(of("fwd bf16 b4 h16 s4096 d64")), (std::vector<std::string>{"b", "c"}));
}

// Its configuration may have no such logits, and costs something else.
TEST(Nearest, ARowOfAFeatureServesNoProblemWithoutIt) {
  for (const char* feature :
       {"softcap(30)", "alibi", "bias(b,h)", "sink", "dropout(0.1,7)", "blocks(128x128)",
        "mask_mod(q_idx >= kv_idx)", "score_mod(score + 1.0f)", "chunk(256)", "causal prefix(8)",
        "window(100,0)", "page(16)", "page(16) kv(e4m3)", "page(16) num_splits(2)",
        "page(16) batch_invariant", "packed(1024,1024)"}) {
    const std::vector<Row> rows = {
        row(std::string("fwd bf16 b1 h16 s1024 d64 ") + feature, "x", 1)};
    for (const char* plain : {"fwd bf16 b1 h16 s1024 d64", "fwd bf16 b2 h16 s1000 d64",
                              "fwd bf16 causal b1 h16 s1024 d64"}) {
      EXPECT_TRUE(nearest(rows, parse_problem(plain)).rows.empty()) << feature << ": " << plain;
    }
  }
  for (const char* pass : {"bwd", "fwdbwd"}) {
    const std::string line = std::string(pass) + " bf16 b1 h16 s1024 d64";
    const Problem any = parse_problem(line), same_bits = parse_problem(line + " deterministic");
    EXPECT_TRUE(nearest({row(to_line(same_bits), "x", 1)}, any).rows.empty());
    EXPECT_TRUE(nearest({row(to_line(any), "x", 1)}, same_bits).rows.empty());
  }
}

TEST(Nearest, ScaleStridesAndLayoutDoNotCount) {
  for (const char* other :
       {"scale(0.5)", "layout(bshd)", "strides_q(1048576,65536,64)", "deterministic"}) {
    const std::string line = std::string("fwd bf16 b1 h16 s1000 d64 ") + other;
    EXPECT_EQ(labels(nearest(kRows, parse_problem(line))), (std::vector<std::string>{"a"})) << line;
  }
}

// Their configurations may pack heads that others do not have.
TEST(Nearest, HeadsArePackedAlike) {
  const std::vector<Row> rows = {row("fwd bf16 causal b8 hq32 hk4 sq4 sk1024 d64", "eight", 1),
                                 row("fwd bf16 causal b8 hq32 hk8 sq4 sk1024 d64", "four", 2)};
  const auto of_line = [&](const char* line) { return labels(nearest(rows, parse_problem(line))); };
  EXPECT_EQ(of_line("fwd bf16 causal b8 hq16 hk4 sq4 sk1024 d64"),
            (std::vector<std::string>{"four"}));
  EXPECT_EQ(of_line("fwd bf16 causal b8 hq40 hk5 sq4 sk1024 d64"),
            (std::vector<std::string>{"eight"}));
  EXPECT_TRUE(of_line("fwd bf16 causal b8 h32 sq4 sk1024 d64").empty());
}

// The order of the rows is that of the store, so that one problem's may stand apart.
TEST(Nearest, RowsOfOneProblemNeedNotBeTogether) {
  const std::vector<Row> mixed = {kRows[1], kRows[0], kRows[2]};
  EXPECT_EQ(labels(nearest(mixed, parse_problem("fwd bf16 b4 h16 s1000 d64"))),
            (std::vector<std::string>{"b", "c"}));
  const std::vector<Row> late = {kRows[0], kRows[1], kRows[0], kRows[2]};
  EXPECT_EQ(labels(nearest(late, parse_problem("fwd bf16 b4 h16 s1024 d64"))),
            (std::vector<std::string>{"b", "c"}));
}

}  // namespace
}  // namespace dfa::profile
