#pragma once

#include "spec/expression.h"

// What engines of 16 bits make shorter of a text, where it moves with the score: that has no more
// digits than theirs. What stands still is the same everywhere (docs/design/0036-user-text.md).
namespace dfa {

inline bool moves_with_score(const ExpressionNode& node) {
  return node.of_score && node.type == ValueType::number;
}

// Does the operation's first operand?
inline bool is_of_moving(const Expression& all, const ExpressionNode& node) {
  return moves_with_score(all.node(node.operands[0]));
}

// Of a division by a constant: what to multiply by in its place, 0 where there is none.
float quick_factor(const Expression& all, const ExpressionNode& division);

}  // namespace dfa
