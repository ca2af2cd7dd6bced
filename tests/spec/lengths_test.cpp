#include "spec/lengths.h"

#include <gtest/gtest.h>

#include "dfa/error.h"
#include "spec/flops.h"

namespace dfa {
namespace {

TEST(Lengths, ALineSaysThemAndSaysThemAgain) {
  const std::string line = "fwd bf16 causal hq4 hk2 d64 lens(512,37,0,1024) lens_k(512,40,7,1024)";
  const Problem p = parse_problem(line);
  EXPECT_EQ(to_line(p), line);
  EXPECT_EQ(p.b, 4);
  EXPECT_EQ(p.sq, 1024);
  EXPECT_EQ(p.total_q, 1573);
  EXPECT_EQ(p.total_k, 1583);
  EXPECT_EQ(p.q(), (Strides{0, 64, 256}));
  EXPECT_EQ(p.v(), (Strides{0, 64, 128}));
  const std::string unknown = "fwd bf16 b4 hq4 hk2 sq1024 sk1024 d64 packed(1573,1583)";
  EXPECT_EQ(to_line(parse_problem(unknown)), unknown);
  EXPECT_EQ(to_line(parse_problem("fwd fp32 h1 d8 lens(3,4)")), "fwd fp32 hq1 hk1 d8 lens(3,4)");
}

TEST(Lengths, AreDrawnAlikeEveryTime) {
  const Problem p = parse_problem("fwd bf16 h1 d64 lens(zipf,50,7)");
  EXPECT_EQ(p, parse_problem(to_line(p)));
  EXPECT_EQ(p.b, 50);
  int below = 0;
  for (const std::int64_t length : p.lens_q) {
    EXPECT_GE(length, 16);
    EXPECT_LE(length, 2048);
    if (length < 256) ++below;
  }
  EXPECT_GT(below, 15);
  EXPECT_NE(p, parse_problem("fwd bf16 h1 d64 lens(zipf,50,8)"));
}

TEST(Lengths, OperationsAreCountedByTheTrueOnes) {
  const Problem p = parse_problem("fwd bf16 causal h2 d64 lens(100,0,30)");
  EXPECT_EQ(forward_flops(p), 2 * 4.0 * 64 * (100 * 100 + 30 * 30) / 2);
  EXPECT_EQ(forward_flops(parse_problem("fwd bf16 b3 h2 s100 d64 packed(130,130)")), 0);
}

void expect_refused(const std::string& line, const std::string& said) {
  try {
    parse_problem(line);
    ADD_FAILURE() << line;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
  }
}

TEST(Lengths, WhatIsNoneIsRefused) {
  expect_refused("fwd bf16 h1 d64 lens()", "lens()");
  expect_refused("fwd bf16 h1 d64 lens(5,-1)", "integers from 0");
  expect_refused("fwd bf16 h1 d64 lens(5,x)", "integers from 0");
  for (const char* gap : {"lens(5,)", "lens(,5)", "lens(5,,6)"}) {
    expect_refused(std::string("fwd bf16 h1 d64 ") + gap, "integers from 0");
  }
  expect_refused("fwd bf16 h1 d64 lens(zipf,0,1)", "zipf,N,SEED");
  expect_refused("fwd bf16 h1 d64 lens(0,0)", "no sequence has a row");
  expect_refused("fwd bf16 h1 s8 d64 lens(5)", "leave them out");
  expect_refused("fwd bf16 h1 d64 lens_k(5)", "lens(…), which is missing");
  expect_refused("fwd bf16 h1 d64 lens(5,6) lens_k(5)", "do not agree");
  expect_refused("fwd bf16 h1 d64 lens(5) lens(6)", "a second lens");
  expect_refused("fwd bf16 b2 h1 s9 d64 packed(8,8)", "pass the rows of all sequences");
  expect_refused("fwd bf16 h1 d64 lens(5) layout(bshd)", "leave layout");
}

TEST(Lengths, DenseProblemsAloneAreAskedFor) {
  require_dense(parse_problem("fwd bf16 h1 s8 d64"), "this");
  EXPECT_THROW(require_dense(parse_problem("fwd bf16 h1 d64 lens(5)"), "this"), Unsupported);
}

}  // namespace
}  // namespace dfa
