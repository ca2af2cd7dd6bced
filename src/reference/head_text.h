#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "dfa/attention.h"
#include "spec/expression.h"

namespace dfa {

// What the texts of a problem say of one query head, by a walk of their trees from the result down.
// No engine shares this. What does not move with the score is computed in fp32, as its text says,
// so that a mask is the same everywhere; what does, in Real, beside its derivative.
template <typename Real>
class HeadText {
 public:
  HeadText(const Problem& p, const Logits& given, std::int64_t b, std::int64_t hq)
      : b_(given.dropout_batch + b), h_(hq), sq_(p.sq), sk_(p.sk) {
    if (!p.mask_mod.empty()) mask_ = parse_mask_mod(p.mask_mod);
    if (!p.score_mod.empty()) score_ = parse_score_mod(p.score_mod);
  }

  bool sees(std::int64_t i, std::int64_t j) const {
    return !mask_ || Walk{*this, *mask_, 0, i, j}.integer(last(*mask_)) != 0;
  }

  bool has_score() const { return score_.has_value(); }
  struct Dual {
    Real value, slope;  // d value / d score
  };
  Dual of(Real score, std::int64_t i, std::int64_t j) const {
    return Walk{*this, *score_, score, i, j}.template moving<Real>(last(*score_));
  }

 private:
  using Op = ExpressionOp;
  static int last(const Expression& expression) {
    return static_cast<int>(expression.nodes.size()) - 1;
  }

  static std::int64_t wrapped(std::int64_t value) {
    constexpr std::int64_t kAll = std::int64_t{1} << 32, kHalf = kAll / 2;
    const std::int64_t low = ((value % kAll) + kAll) % kAll;
    return low >= kHalf ? low - kAll : low;
  }
  template <typename R>
  static std::int64_t truncated(R value) {
    if (std::isnan(value)) return 0;
    const double whole = std::trunc(static_cast<double>(value));
    return static_cast<std::int64_t>(std::fmax(-2147483648.0, std::fmin(2147483647.0, whole)));
  }

  struct Walk {
    const HeadText& head;
    const Expression& all;
    Real score;
    std::int64_t i, j;

    int operand(const ExpressionNode& node, int n) const { return node.operands[n]; }

    std::int64_t named(ExpressionName name) const {
      switch (name) {
        case ExpressionName::b: return head.b_;
        case ExpressionName::h: return head.h_;
        case ExpressionName::q_idx: return i;
        case ExpressionName::kv_idx: return j;
        case ExpressionName::sq: return head.sq_;
        case ExpressionName::sk: return head.sk_;
        case ExpressionName::score: break;
      }
      return 0;
    }

    // -1, 0 or 1 as operands compare, 2 where one is NaN.
    int compared(const ExpressionNode& node) const {
      const int a = operand(node, 0), b = operand(node, 1);
      const auto order = [](auto x, auto y) {
        if (x < y) return -1;
        if (x > y) return 1;
        return x == y ? 0 : 2;
      };
      if (all.node(a).type != ValueType::number) return order(integer(a), integer(b));
      if (node.of_score) return order(number(a), number(b));
      return order(still(a), still(b));
    }

    // Of a boolean or an integer node.
    std::int64_t integer(int index) const {
      const ExpressionNode& node = all.node(index);
      const auto of = [&](int n) { return integer(operand(node, n)); };
      switch (node.op) {
        case Op::constant: return node.integer;
        case Op::name: return named(node.name);
        case Op::to_boolean: {
          const int from = operand(node, 0);
          if (all.node(from).type != ValueType::number) return integer(from) != 0 ? 1 : 0;
          return number(from) != 0 ? 1 : 0;
        }
        case Op::to_integer: {
          const int from = operand(node, 0);
          return all.node(from).type == ValueType::number ? truncated(still(from)) : integer(from);
        }
        case Op::negate: return wrapped(-of(0));
        case Op::logic_not: return of(0) == 0 ? 1 : 0;
        case Op::bit_not: return -1 - of(0);
        case Op::multiply: return wrapped(of(0) * of(1));
        case Op::divide: {
          const std::int64_t by = of(1);
          return by == 0 ? 0 : wrapped(of(0) / by);
        }
        case Op::remainder: {
          const std::int64_t by = of(1);
          return by == 0 ? 0 : of(0) % by;
        }
        case Op::add: return wrapped(of(0) + of(1));
        case Op::subtract: return wrapped(of(0) - of(1));
        case Op::shift_left: return wrapped(of(0) * (std::int64_t{1} << (of(1) & 31)));
        case Op::shift_right: return of(0) >> (of(1) & 31);
        case Op::bit_and: return of(0) & of(1);
        case Op::bit_xor: return of(0) ^ of(1);
        case Op::bit_or: return of(0) | of(1);
        case Op::less: return compared(node) == -1 ? 1 : 0;
        case Op::less_equal: return compared(node) <= 0 ? 1 : 0;
        case Op::greater: return compared(node) == 1 ? 1 : 0;
        case Op::greater_equal: {
          const int order = compared(node);
          return order == 0 || order == 1 ? 1 : 0;
        }
        case Op::equal: return compared(node) == 0 ? 1 : 0;
        case Op::not_equal: return compared(node) != 0 ? 1 : 0;
        case Op::logic_and: return of(0) != 0 && of(1) != 0 ? 1 : 0;
        case Op::logic_or: return of(0) != 0 || of(1) != 0 ? 1 : 0;
        case Op::select: return of(0) != 0 ? of(1) : of(2);
        case Op::absolute: return wrapped(std::abs(of(0)));
        case Op::least: return std::min(of(0), of(1));
        case Op::largest: return std::max(of(0), of(1));
        default: return 0;  // what is a number alone
      }
    }

    Real number(int index) const { return moving<Real>(index).value; }
    float still(int index) const { return static_cast<float>(moving<float>(index).value); }

    template <typename R>
    struct Of {
      R value, slope;
    };

    // Of a node that is a number.
    template <typename R>
    auto moving(int index) const {
      using D = std::conditional_t<std::is_same_v<R, Real>, Dual, Of<R>>;
      return dual<R, D>(index);
    }

    template <typename R, typename D>
    D dual(int index) const {
      const ExpressionNode& node = all.node(index);
      if constexpr (!std::is_same_v<R, float>) {
        if (!node.of_score) return {static_cast<R>(still(index)), 0};
      }
      const auto of = [&](int n) { return dual<R, D>(operand(node, n)); };
      switch (node.op) {
        case Op::constant: return {static_cast<R>(node.number), 0};
        case Op::name: return {static_cast<R>(score), 1};
        case Op::to_number: return {static_cast<R>(integer(operand(node, 0))), 0};
        case Op::negate: {
          const D a = of(0);
          return {-a.value, -a.slope};
        }
        case Op::add: {
          const D a = of(0), b = of(1);
          return {a.value + b.value, a.slope + b.slope};
        }
        case Op::subtract: {
          const D a = of(0), b = of(1);
          return {a.value - b.value, a.slope - b.slope};
        }
        case Op::multiply: {
          const D a = of(0), b = of(1);
          return {a.value * b.value,
                  moved(node, 0, a.slope * b.value) + moved(node, 1, a.value * b.slope)};
        }
        case Op::divide: {
          const D a = of(0), b = of(1);
          const R quotient = a.value / b.value;
          return {quotient,
                  moved(node, 0, a.slope / b.value) - moved(node, 1, quotient * b.slope / b.value)};
        }
        case Op::select: return integer(operand(node, 0)) != 0 ? of(1) : of(2);
        case Op::absolute: {
          const D a = of(0);
          const R sign = a.value > 0 ? R(1) : a.value < 0 ? R(-1) : R(0);
          return {std::fabs(a.value), moved(node, 0, sign * a.slope)};
        }
        case Op::least: {
          const D a = of(0), b = of(1);
          return std::isnan(a.value) || b.value < a.value ? b : a;
        }
        case Op::largest: {
          const D a = of(0), b = of(1);
          return std::isnan(a.value) || b.value > a.value ? b : a;
        }
        case Op::tanh: {
          const D a = of(0);
          const R t = std::tanh(a.value), cosh = std::cosh(a.value);
          return {t, moved(node, 0, a.slope / (cosh * cosh))};
        }
        case Op::exp: {
          const D a = of(0);
          const R e = std::exp(a.value);
          return {e, moved(node, 0, e * a.slope)};
        }
        case Op::log: {
          const D a = of(0);
          return {std::log(a.value), moved(node, 0, a.slope / a.value)};
        }
        case Op::sqrt: {
          const D a = of(0);
          const R root = std::sqrt(a.value);
          return {root, moved(node, 0, a.slope / (2 * root))};
        }
        case Op::sin: {
          const D a = of(0);
          return {std::sin(a.value), moved(node, 0, std::cos(a.value) * a.slope)};
        }
        case Op::cos: {
          const D a = of(0);
          return {std::cos(a.value), moved(node, 0, -std::sin(a.value) * a.slope)};
        }
        case Op::pow: {
          const D a = of(0), b = of(1);
          return {std::pow(a.value, b.value),
                  moved(node, 0, b.value * std::pow(a.value, b.value - 1) * a.slope)};
        }
        default: return {R(0), R(0)};  // what is a boolean or an integer alone
      }
    }

    // 0 of an operand that stands still, also where the other factor is not finite.
    template <typename R>
    R moved(const ExpressionNode& node, int n, R slope) const {
      return all.node(operand(node, n)).of_score ? slope : R(0);
    }
  };

  std::int64_t b_, h_, sq_, sk_;
  std::optional<Expression> mask_, score_;
};

}  // namespace dfa
