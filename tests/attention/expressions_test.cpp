// Texts by every evaluator, against what a C++ compiler made of them
// (tests/tools/make_expressions.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/user_text.h"
#include "cpu/user_text_rows.h"
#include "reference/head_text.h"
#include "spec/expression.h"

namespace dfa {
namespace {

struct TableLine {
  bool mask = false;
  std::string text{};
  int b = 0, h = 0, q_idx = 0, kv_idx = 0, sq = 0, sk = 0;
  float score = 0;
  double result = 0;

  Problem problem() const {
    Problem p{.b = b + 1, .hq = h + 1, .sq = sq, .sk = sk};
    (mask ? p.mask_mod : p.score_mod) = text;
    return p;
  }
};

std::vector<TableLine> table() {
  std::ifstream file(std::string(DFA_SOURCE_DIR) + "/tests/data/expressions.txt");
  std::vector<TableLine> lines;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    std::istringstream rest(line.substr(second + 1));
    TableLine one{line.substr(0, first) == "mask", line.substr(first + 1, second - first - 1)};
    std::string score, result;
    rest >> one.b >> one.h >> one.q_idx >> one.kv_idx >> one.sq >> one.sk >> score >> result;
    one.score = std::strtof(score.c_str(), nullptr);
    one.result = std::strtod(result.c_str(), nullptr);
    lines.push_back(one);
  }
  return lines;
}

// Keys before and behind the line's are evaluated with it.
double by_engine(const TableLine& line, const Problem& p, float* slope) {
  const cpu::UserText text(p);
  constexpr int kBefore = 5, kCount = 41;
  const cpu::TextRow row{{line.b, line.h}, line.q_idx, line.kv_idx - kBefore};
  if (line.mask) {
    std::vector<std::uint8_t> shown(kCount);
    show_by_text(text, row, shown.data(), kCount);
    return shown[kBefore];
  }
  std::vector<float> scores(kCount, line.score), slopes(kCount);
  transform_by_text(text, row, scores.data(), kCount, slopes.data());
  *slope = slopes[kBefore];
  return static_cast<double>(scores[kBefore]);
}

TEST(Expressions, EveryEvaluatorSaysWhatCxxSays) {
  int lines = 0;
  for (const TableLine& line : table()) {
    ++lines;
    const Problem p = line.problem();
    float slope = 0;
    EXPECT_EQ(by_engine(line, p, &slope), line.result) << line.text;
    const HeadText<float> head(p, {}, line.b, line.h);
    if (line.mask) {
      EXPECT_EQ(head.sees(line.q_idx, line.kv_idx) ? 1 : 0, line.result) << line.text;
      continue;
    }
    const auto dual = head.of(line.score, line.q_idx, line.kv_idx);
    EXPECT_EQ(static_cast<double>(dual.value), line.result) << line.text;
    EXPECT_NEAR(dual.slope, slope, 1e-4F * (1 + std::fabs(slope))) << line.text;
  }
  EXPECT_EQ(lines, 480);
}

// Where the text is smooth around the score its derivative is the quotient of differences.
TEST(Expressions, DerivativesAreQuotientsOfDifferences) {
  int smooth = 0, moving = 0;
  for (const TableLine& line : table()) {
    if (line.mask) continue;
    const HeadText<double> head(line.problem(), {}, line.b, line.h);
    const auto at = [&](double score) { return head.of(score, line.q_idx, line.kv_idx); };
    constexpr double kStep = 1e-6;
    const double low = at(line.score - kStep).value, middle = at(line.score).value,
                 high = at(line.score + kStep).value;
    const double before = (middle - low) / kStep, behind = (high - middle) / kStep;
    if (std::fabs(before - behind) > 1e-3 * (1 + std::fabs(behind))) continue;  // a kink
    ++smooth;
    const double slope = at(line.score).slope;
    EXPECT_NEAR(slope, (high - low) / (2 * kStep), 1e-4 * (1 + std::fabs(slope))) << line.text;
    if (slope != 0) ++moving;
  }
  EXPECT_GT(smooth, 200);
  EXPECT_GT(moving, 100);
}

TEST(Expressions, TheShortestSpellingSaysTheSame) {
  for (TableLine line : table()) {
    const auto spelt = [&](const std::string& text) {
      return expression_text(line.mask ? parse_mask_mod(text) : parse_score_mod(text));
    };
    line.text = spelt(line.text);
    EXPECT_EQ(line.text.find(' '), std::string::npos) << line.text;
    EXPECT_EQ(spelt(line.text), line.text);
    float slope;
    EXPECT_EQ(by_engine(line, line.problem(), &slope), line.result) << line.text;
  }
}

// What C++ leaves undefined is the same in both evaluators.
TEST(Expressions, ArithmeticIsTotal) {
  struct Case {
    const char* text;
    double result;
  };
  for (const Case& one :
       {Case{"7 / (q_idx - q_idx)", 0}, Case{"7 % (q_idx - q_idx)", 0},
        Case{"2147483647 + h", -2147483648.0}, Case{"(-2147483647 - h) / -1", -2147483648.0},
        Case{"(-2147483647 - h) % -1", 0}, Case{"h << 33", 2}, Case{"-8 >> 1", -4},
        Case{"65536 * 65536", 0}, Case{"abs(-2147483647 - 1)", -2147483648.0},
        Case{"int(1e20f)", 2147483647.0}, Case{"int(-1e20f)", -2147483648.0},
        Case{"int(INFINITY - INFINITY)", 0}, Case{"int(-1.75f)", -1}, Case{"-7 / 2", -3},
        Case{"-7 % 2", -1}, Case{"~0", -1}, Case{"min(INFINITY - INFINITY, 3)", 3},
        Case{"max(3.0f, INFINITY - INFINITY)", 3}}) {
    TableLine line{false, one.text, 0, 1, 5, 9, 20, 20, 0.5F, one.result};
    // A float has no room for the largest int.
    const double wanted = static_cast<double>(static_cast<float>(one.result));
    float slope;
    EXPECT_EQ(by_engine(line, line.problem(), &slope), wanted) << one.text;
    EXPECT_EQ(HeadText<float>(line.problem(), {}, 0, 1).of(0.5F, 5, 9).value, wanted) << one.text;
    EXPECT_EQ(HeadText<double>(line.problem(), {}, 0, 1).of(0.5, 5, 9).value, wanted) << one.text;
  }
}

}  // namespace
}  // namespace dfa
