#include "spec/quick_text.h"

#include <cmath>

namespace dfa {
namespace {

// Of a node that is a constant, also one in an int that C++ makes a float; else NaN.
float constant_number(const Expression& all, const ExpressionNode& node) {
  if (node.op == ExpressionOp::to_number) {
    const ExpressionNode& of = all.node(node.operands[0]);
    const bool is_integer = of.op == ExpressionOp::constant && of.type == ValueType::integer;
    return is_integer ? static_cast<float>(of.integer) : NAN;
  }
  return node.op == ExpressionOp::constant ? node.number : NAN;
}

}  // namespace

float quick_factor(const Expression& all, const ExpressionNode& division) {
  constexpr float kMost = 1e30f;  // of it and of its reciprocal, which have all digits then
  if (division.type != ValueType::number || !is_of_moving(all, division)) return 0;
  const float factor = 1 / constant_number(all, all.node(division.operands[1]));
  const float size = std::abs(factor);
  return size <= kMost && size >= 1 / kMost ? factor : 0;
}

}  // namespace dfa
