#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Users' own masks and logits: a mask_mod or a score_mod is one C++ expression
// (docs/design/0036-user-text.md). It is parsed here, by the types that C++ gives it; every engine
// evaluates the tree in its own way.
//
// Arithmetic is total, and the same everywhere: ints have 32 bits and wrap around, division by 0
// gives 0 and so does its remainder, shifts take the low five bits of their count, int(x) goes to
// 0, stops at the least and the largest int, and of NaN is 0.
namespace dfa {

enum class ValueType : int { boolean, integer, number };  // bool, int and float of C++

enum class ExpressionName : int { score, b, h, q_idx, kv_idx, sq, sk };

enum class ExpressionOp : int {
  constant,
  name,
  to_boolean,  // is it not 0?
  to_integer,
  to_number,
  negate,
  logic_not,
  bit_not,
  multiply,
  divide,
  remainder,
  add,
  subtract,
  shift_left,
  shift_right,
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  bit_and,
  bit_xor,
  bit_or,
  logic_and,
  logic_or,
  select,
  absolute,
  least,    // of two numbers of which one is NaN it is the other
  largest,  // likewise
  tanh,
  exp,
  log,
  sqrt,
  sin,
  cos,
  pow,
};

// One operation. Operands come before it and have one type, that of the result but for comparisons,
// select's first and conversions.
struct ExpressionNode {
  ExpressionOp op = ExpressionOp::constant;
  ValueType type = ValueType::integer;
  bool of_score = false;  // its value moves with the score
  bool written = true;    // false: a conversion that C++ does unasked
  ExpressionName name = ExpressionName::score;
  std::int32_t integer = 0;  // of a constant that is a boolean or an integer
  float number = 0;
  int operands[3] = {-1, -1, -1};

  int count() const { return operands[0] < 0 ? 0 : operands[1] < 0 ? 1 : operands[2] < 0 ? 2 : 3; }
};

// The last node is the result: a boolean of a mask_mod, a number of a score_mod.
struct Expression {
  std::vector<ExpressionNode> nodes;

  const ExpressionNode& node(int index) const { return nodes[static_cast<std::size_t>(index)]; }
  bool names(ExpressionName name) const;
};

inline constexpr std::size_t kMostExpressionText = 1000;  // characters
inline constexpr std::size_t kMostExpressionNodes = 256;  // operations, conversions among them
inline constexpr int kMostExpressionDepth = 64;           // of parentheses and the like
inline constexpr std::int64_t kMostExpressionSize = 0x7fffffff;  // of b, hq, sq and sk

// Throw InvalidArgument with the column, from 1 on: "mask_mod: column 8: …".
Expression parse_mask_mod(std::string_view text);
Expression parse_score_mod(std::string_view text);

// The same in the fewest characters, without spaces: parsed again it gives an equal tree.
std::string expression_text(const Expression& expression);

// Of a node that is a constant: "true", "7", "0.5f", "INFINITY".
std::string constant_text(const ExpressionNode& node);

// The one spelling of an operation: "+", "tanh".
const char* expression_symbol(ExpressionOp op);

}  // namespace dfa
