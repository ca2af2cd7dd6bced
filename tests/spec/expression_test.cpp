// The language of mask_mod and score_mod, and their place in a problem line.
#include "spec/expression.h"

#include <gtest/gtest.h>

#include <string>

#include "dfa/error.h"
#include "dfa/problem.h"
#include "spec/expression_source.h"
#include "spec/user_text.h"

namespace dfa {
namespace {

std::string mask_error(const std::string& text) {
  try {
    parse_mask_mod(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

std::string score_error(const std::string& text) {
  try {
    parse_score_mod(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

std::string mask_text(const std::string& text) { return expression_text(parse_mask_mod(text)); }
std::string score_text(const std::string& text) { return expression_text(parse_score_mod(text)); }

TEST(Expression, IsSpeltTheShortestWay) {
  EXPECT_EQ(mask_text(" kv_idx\t<= \n q_idx "), "kv_idx<=q_idx");
  EXPECT_EQ(mask_text("((b) == 1) and not ((h < 2) or true)"), "b==1&&!(h<2||true)");
  EXPECT_EQ(mask_text("(q_idx >> 3) == (kv_idx >> 3)"), "q_idx>>3==kv_idx>>3");
  EXPECT_EQ(mask_text("(q_idx & 3) == (kv_idx & 3)"), "(q_idx&3)==(kv_idx&3)");
  EXPECT_EQ(mask_text("q_idx - (kv_idx - 1) > 0"), "q_idx-(kv_idx-1)>0");
  EXPECT_EQ(score_text("score - (-0.10f)"), "score-(-0.1f)");
  EXPECT_EQ(score_text("30. * tanhf((score) / 3e1f)"), "30.0f*tanh(score/30.0f)");
  EXPECT_EQ(score_text("fmaxf(score, -2) + fabsf(score)"), "max(score,-2)+abs(score)");
  EXPECT_EQ(score_text("kv_idx <= q_idx ? score : -INFINITY"), "kv_idx<=q_idx?score:-INFINITY");
  EXPECT_EQ(score_text("(h < 1 ? b : 2) ? score : 1"), "(h<1?b:2)?score:1");
  EXPECT_EQ(score_text("h < 1 ? b < 1 ? score : 1 : 2"), "h<1?b<1?score:1:2");
  EXPECT_EQ(score_text("score + !!h"), "score+!(!h)");
  EXPECT_EQ(score_text("+(h < 1) & +(b < 2)"), "int(h<1)&int(b<2)");
}

TEST(Expression, ASyntaxErrorIsOneLineWithItsPlace) {
  EXPECT_EQ(score_error("(score + * 2"), "score_mod: column 10: expected a value before '*'");
  EXPECT_EQ(score_error("score * (1 + 2"), "score_mod: column 15: expected ')' at the end");
  EXPECT_EQ(score_error("(score 2)"), "score_mod: column 8: expected ')' before '2'");
  EXPECT_EQ(score_error(""), "score_mod: column 1: expected a value at the end");
  EXPECT_EQ(mask_error("kv_idx <=\n"), "mask_mod: column 11: expected a value at the end");
  EXPECT_EQ(mask_error("kv_idx <= q_idx; return"), "mask_mod: column 16: unexpected ';'");
  EXPECT_EQ(mask_error("kv_idx = q_idx"), "mask_mod: column 8: unexpected '='");
  EXPECT_EQ(mask_error("kv_idx <= q_idx)"), "mask_mod: column 16: unexpected ')'");
  EXPECT_EQ(mask_error("h ? true"), "mask_mod: column 9: expected ':' at the end");
  EXPECT_EQ(score_error("score -- 1"), "score_mod: column 7: unexpected '--'");
  EXPECT_EQ(score_error("score \x01"), "score_mod: column 7: unexpected '\\x01'");
  EXPECT_EQ(score_error("tanh score"), "score_mod: column 6: expected '(' after 'tanh'");
  EXPECT_EQ(score_error("min(score)"), "score_mod: column 10: 'min' has two arguments");
  EXPECT_EQ(score_error("tanh(score, 1)"), "score_mod: column 11: 'tanh' has one argument");
}

TEST(Expression, WhatIsNotOfTheLanguageIsRefusedByName) {
  EXPECT_EQ(mask_error("kv_index <= q_idx"),
            "mask_mod: column 1: unknown name 'kv_index'; accepted: b, h, q_idx, kv_idx, sq, sk");
  EXPECT_EQ(mask_error("score > 0"),
            "mask_mod: column 1: 'score' is of a score_mod, not of a mask");
  EXPECT_EQ(
      score_error("erf(score)"),
      "score_mod: column 1: unknown function 'erf'; accepted: abs, min, max, tanh, exp, log, sqrt, "
      "sin, cos, pow, int, float");
  EXPECT_EQ(mask_error("kv_idx - q_idx"),
            "mask_mod: column 1: the result is int; a mask is a bool, such as 'kv_idx <= q_idx'");
  EXPECT_EQ(score_error("score > 0"),
            "score_mod: column 1: the result is bool; a logit is a float");
  EXPECT_EQ(score_error("score % 2"), "score_mod: column 7: '%' is of ints, not of a float");
  EXPECT_EQ(score_error("~score"), "score_mod: column 1: '~' is of ints, not of a float");
  EXPECT_EQ(mask_error("q_idx / 0 == 1"), "mask_mod: column 7: division by zero");
  EXPECT_EQ(score_error("int(score)"),
            "score_mod: column 1: int(...) of the score has no derivative");
  EXPECT_EQ(
      score_error("pow(2, score)"),
      "score_mod: column 1: an exponent that moves with the score is not accepted; write exp(y * "
      "log(x))");
  EXPECT_EQ(score_error("010 * score"),
            "score_mod: column 1: integer '010' begins with 0, an octal number of C++");
  EXPECT_EQ(score_error("0x10 * score"), "score_mod: column 1: '0x10' is no number");
  EXPECT_EQ(score_error("5f * score"), "score_mod: column 1: '5f' is no number");
  EXPECT_EQ(score_error("1.5.2 * score"), "score_mod: column 1: '1.5.2' is no number");
  EXPECT_EQ(score_error("2147483648"),
            "score_mod: column 1: integer '2147483648' does not fit an int");
  EXPECT_EQ(score_error("1e99 * score"), "score_mod: column 1: number '1e99' does not fit a float");
}

TEST(Expression, ItsSizeIsBounded) {
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_EQ(score_error(repeated("(", 62) + "score" + repeated(")", 62)), "");
  EXPECT_EQ(score_error(repeated("(", 80) + "score" + repeated(")", 80)),
            "score_mod: column 65: deeper than 64 levels");
  EXPECT_EQ(score_error(repeated("- ", 80) + "score"),
            "score_mod: column 127: deeper than 64 levels");
  EXPECT_EQ(score_error("score" + repeated("?score:1", 100)),
            "score_mod: column 511: deeper than 64 levels");
  EXPECT_EQ(score_error("score" + repeated(" + h", 90)),
            "score_mod: column 351: more than 256 operations");
  EXPECT_EQ(score_error(repeated(" ", 996) + "score"),
            "score_mod: column 1001: more than 1000 characters");
  EXPECT_EQ(score_error(repeated("(", 100000)),
            "score_mod: column 1001: more than 1000 characters");
}

// Whatever the bytes are, a parse ends with a tree or with one line.
TEST(Expression, AnyBytesAreATreeOrOneLine) {
  constexpr char kPieces[] = "score q_idx kv_idx()()+-*/%<>=!&|^~?:,.0123456789ef \n\x80\xff";
  unsigned state = 1;
  const auto next = [&](unsigned below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  int trees = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    std::string text = turn % 2 == 0 ? "score" : "";
    for (unsigned i = next(12); i > 0; --i) text += kPieces[next(sizeof kPieces - 1)];
    const std::string error = score_error(text);
    if (error.empty()) {
      ++trees;
      EXPECT_EQ(score_text(score_text(text)), score_text(text)) << text;
    } else {
      EXPECT_EQ(error.find('\n'), std::string::npos) << text;
      EXPECT_EQ(error.rfind("score_mod: column ", 0), 0U) << text;
    }
  }
  EXPECT_GT(trees, 100);
}

TEST(Expression, AProblemLineHasThem) {
  const Problem p = parse_problem(
      "fwd fp32 h2 s8 d64 mask_mod(kv_idx <= (q_idx)) score_mod( score - 0.1f * abs(q_idx - "
      "kv_idx) ) sink");
  EXPECT_EQ(p.mask_mod, "kv_idx<=q_idx");
  EXPECT_EQ(p.score_mod, "score-0.1f*abs(q_idx-kv_idx)");
  EXPECT_TRUE(p.sink);
  EXPECT_FALSE(p.plain());
  EXPECT_EQ(to_line(p),
            "fwd fp32 b1 hq2 hk2 sq8 sk8 d64 sink mask_mod(kv_idx<=q_idx) "
            "score_mod(score-0.1f*abs(q_idx-kv_idx))");
  EXPECT_EQ(parse_problem(to_line(p)), p);
}

std::string line_error(const std::string& rest) {
  try {
    parse_problem("fwd fp32 h2 s8 d64 " + rest);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Expression, AWrongLineIsOneLine) {
  EXPECT_EQ(line_error("mask_mod(kv_idx <= )"), "mask_mod: column 11: expected a value at the end");
  EXPECT_EQ(line_error("mask_mod(kv_idx <= (q_idx sink"),
            "problem: 'mask_mod(kv_idx <= (q_idx sink' is not of the form mask_mod(TEXT)");
  EXPECT_EQ(line_error("mask_mod(true)x"),
            "problem: 'mask_mod(true)x' is not of the form mask_mod(TEXT)");
  EXPECT_EQ(line_error("score_mod(score) score_mod(score)"),
            "problem: a second score_mod 'score_mod(score)'");
  EXPECT_EQ(line_error("score_mod()"), "score_mod: column 1: expected a value at the end");
  EXPECT_EQ(line_error("sk3000000000 mask_mod(true)").substr(0, 8), "problem:");
}

TEST(Expression, ALineOfTooManyKeysOrOfABatchThatVariesIsRefused) {
  Problem p{.sk = 1LL << 31, .mask_mod = "true"};
  try {
    validate(p);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "problem: sk=2147483648 beside mask_mod(…) or score_mod(…); accepted: up to 2^31 - 1");
  }
  const std::string packed = "fwd bf16 h1 d64 lens(3,4) batch_invariant ";
  EXPECT_NO_THROW(parse_problem(packed + "mask_mod(kv_idx <= q_idx)"));
  try {
    parse_problem(packed + "mask_mod(kv_idx <= b)");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "problem: batch_invariant beside mask_mod(…) that names b, the number of a sequence in "
        "its call; accepted: one of them");
  }
}

// By what compiled kernels grow: an operation is an instruction, functions are many.
TEST(Expression, InstructionsOfTextsAreCounted) {
  const auto count = [](const char* text) {
    return instructions_of_texts(parse_problem(std::string("fwd bf16 h1 s8 d64 ") + text));
  };
  const auto count_of_fp32 = [](const char* text) {
    return instructions_of_texts(parse_problem(std::string("fwd fp32 h1 s8 d64 ") + text));
  };
  EXPECT_EQ(count(""), 0);
  EXPECT_EQ(count("mask_mod(kv_idx<=q_idx)"), 1);
  EXPECT_EQ(count("mask_mod(kv_idx<=q_idx) score_mod(score+score)"), 2);
  EXPECT_EQ(count("mask_mod(kv_idx%7==h)"), 7);
  EXPECT_EQ(count("mask_mod(kv_idx/sq==h)"), 31);
  EXPECT_EQ(count("score_mod(2.0f*tanh(score/2.0f))"), 18);
  EXPECT_EQ(count("score_mod(score+tanh(h/2.0f))"), 38);
  EXPECT_EQ(count_of_fp32("score_mod(2.0f*tanh(score/2.0f))"), 37);
  EXPECT_EQ(count("score_mod(sin(score)+cos(score))"), 241);
}

// A device's text is of the tree: nothing that was written goes there.
TEST(Expression, SourceIsOfTheTree) {
  Problem p;
  p.mask_mod = "kv_idx <= q_idx";
  p.score_mod = "score * 0.5f";
  EXPECT_EQ(
      user_text_source(p),
      "#include \"kernels/variant/user_text.cuh\"\n"
      "namespace dfa {\n"
      "template <>\n"
      "struct UserText<true> {\n"
      "  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, "
      "float& share) {\n"
      "    [[maybe_unused]] const int mv0 = at.kv_idx;\n"
      "    [[maybe_unused]] const int mv1 = at.q_idx;\n"
      "    [[maybe_unused]] const bool mv2 = mv0 <= mv1;\n"
      "    const bool shown = mv2;\n"
      "    [[maybe_unused]] const float sv0 = score;\n"
      "    [[maybe_unused]] const float sd0 = 1.0f;\n"
      "    [[maybe_unused]] const float sv1 = 0.5f;\n"
      "    [[maybe_unused]] const float sv2 = text::multiply(sv0, sv1);\n"
      "    [[maybe_unused]] const float sd2 = sd0 * sv1;\n"
      "    share = sd2;\n"
      "    return shown ? sv2 : -ptx::infinity();\n"
      "  }\n"
      "};\n"
      "}  // namespace dfa\n");
}

// What moves with the score has 16 bits' digits there, and what stands still the same everywhere.
TEST(Expression, SourceOf16BitsIsQuickWhereItMoves) {
  const auto source = [](const char* type, const char* text) {
    return user_text_source(
        parse_problem(std::string("fwd ") + type + " h1 s8 d64 score_mod(" + text + ")"));
  };
  const auto has = [&](const char* type, const char* text, const char* part) {
    return source(type, text).find(part) != std::string::npos;
  };
  EXPECT_TRUE(has("bf16", "tanh(score/8)", "text::multiply(sv0, 0.125f)"));
  EXPECT_TRUE(has("fp16", "tanh(score/8)", "quick_tanh("));
  EXPECT_FALSE(has("fp16", "tanh(score/8)", " / "));
  EXPECT_TRUE(has("fp32", "tanh(score/8)", "text::divide("));
  EXPECT_TRUE(has("fp32", "tanh(score/8)", "tanhf("));
  EXPECT_TRUE(has("bf16", "score+tanh(h/8.0f)", "text::divide("));
  EXPECT_TRUE(has("bf16", "score+tanh(h/8.0f)", "= tanhf("));
  for (const char* text : {"score/h", "score/2e-38f", "score/INFINITY", "8/score"}) {
    EXPECT_TRUE(has("bf16", text, "text::divide(")) << text;
  }
}

}  // namespace
}  // namespace dfa
