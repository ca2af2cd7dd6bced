#include "cpu/user_text.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/wider_vectors.h"
#include "cpu/user_text_rows.h"
#include "dfa/attention.h"

namespace dfa::cpu {
namespace {

using Op = ExpressionOp;

constexpr int kLanes = 32;  // keys that go through an operation together

// A node's values: of a number `numbers`, else `integers`.
union alignas(64) Lanes {
  float numbers[kLanes];
  std::int32_t integers[kLanes];
};

// All nodes of an expression for kLanes keys, and the derivatives of those that move with the
// score. Each takes the operands' lanes, so that the work of walking is shared by them.
struct Evaluation {
  Lanes values[kMostExpressionNodes];
  Lanes slopes[kMostExpressionNodes];
};

struct Place {
  std::int32_t b, h, query, key, sq, sk;
};

std::int32_t wrapped(std::uint32_t bits) { return std::bit_cast<std::int32_t>(bits); }
std::uint32_t bits(std::int32_t value) { return std::bit_cast<std::uint32_t>(value); }

// Of ints, as spec/expression.h has them.
std::int32_t quotient(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  return b == -1 ? wrapped(0U - bits(a)) : a / b;
}
std::int32_t remainder_of(std::int32_t a, std::int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
std::int32_t truncated(float value) {
  if (!(value == value)) return 0;
  if (value >= 0x1p31F) return std::numeric_limits<std::int32_t>::max();
  if (value <= -0x1p31F) return std::numeric_limits<std::int32_t>::min();
  return static_cast<std::int32_t>(value);
}

// of(a, b) in every lane, of whichever operands there are.
template <typename To, typename From, typename Of>
inline void each(To* to, const From* a, const From* b, const Of& of) {
  for (int i = 0; i < kLanes; ++i) to[i] = of(a[i], b[i]);
}

template <typename From>
inline bool compare(Op op, std::int32_t* to, const From* a, const From* b) {
  switch (op) {
    case Op::less: each(to, a, b, [](From x, From y) { return x < y ? 1 : 0; }); return true;
    case Op::less_equal: each(to, a, b, [](From x, From y) { return x <= y ? 1 : 0; }); return true;
    case Op::greater: each(to, a, b, [](From x, From y) { return x > y ? 1 : 0; }); return true;
    case Op::greater_equal:
      each(to, a, b, [](From x, From y) { return x >= y ? 1 : 0; });
      return true;
    case Op::equal: each(to, a, b, [](From x, From y) { return x == y ? 1 : 0; }); return true;
    case Op::not_equal: each(to, a, b, [](From x, From y) { return x != y ? 1 : 0; }); return true;
    default: return false;
  }
}

void name_lanes(ExpressionName name, const Place& place, std::int32_t* to) {
  const std::int32_t values[] = {0, place.b, place.h, place.query, place.key, place.sq, place.sk};
  std::fill_n(to, kLanes, values[static_cast<int>(name)]);
  if (name != ExpressionName::kv_idx) return;
  // Behind the last key there may be no int left for a number that nobody reads.
  for (int i = 0; i < kLanes; ++i) to[i] = wrapped(bits(place.key) + static_cast<std::uint32_t>(i));
}

// A node that is a boolean or an integer.
DFA_WIDER_VECTORS void integer_lanes(const ExpressionNode& node, const Expression& all,
                                     const Place& place, Lanes* values, std::int32_t* to) {
  using Int = std::int32_t;
  const int first = node.operands[0];
  const bool of_numbers = first >= 0 && all.node(first).type == ValueType::number;
  const Lanes& left = values[std::max(first, 0)];
  const Int* a = left.integers;
  const Int* b = values[std::max(node.operands[1], 0)].integers;
  if (of_numbers) {
    const float* x = left.numbers;
    const float* y = values[std::max(node.operands[1], 0)].numbers;
    if (compare(node.op, to, x, y)) return;
    if (node.op == Op::to_boolean) {
      for (int i = 0; i < kLanes; ++i) to[i] = x[i] != 0 ? 1 : 0;
    } else {
      for (int i = 0; i < kLanes; ++i) to[i] = truncated(x[i]);
    }
    return;
  }
  if (compare(node.op, to, a, b)) return;
  switch (node.op) {
    case Op::constant: std::fill_n(to, kLanes, node.integer); return;
    case Op::name: return name_lanes(node.name, place, to);
    case Op::to_boolean: each(to, a, a, [](Int x, Int) { return x != 0 ? 1 : 0; }); return;
    case Op::to_integer: std::copy_n(a, kLanes, to); return;
    case Op::negate: each(to, a, a, [](Int x, Int) { return wrapped(0U - bits(x)); }); return;
    case Op::logic_not: each(to, a, a, [](Int x, Int) { return x == 0 ? 1 : 0; }); return;
    case Op::bit_not: each(to, a, a, [](Int x, Int) { return ~x; }); return;
    case Op::multiply:
      each(to, a, b, [](Int x, Int y) { return wrapped(bits(x) * bits(y)); });
      return;
    case Op::divide: each(to, a, b, quotient); return;
    case Op::remainder: each(to, a, b, remainder_of); return;
    case Op::add: each(to, a, b, [](Int x, Int y) { return wrapped(bits(x) + bits(y)); }); return;
    case Op::subtract:
      each(to, a, b, [](Int x, Int y) { return wrapped(bits(x) - bits(y)); });
      return;
    case Op::shift_left:
      each(to, a, b, [](Int x, Int y) { return wrapped(bits(x) << (bits(y) & 31)); });
      return;
    case Op::shift_right: each(to, a, b, [](Int x, Int y) { return x >> (y & 31); }); return;
    case Op::bit_and:
    case Op::logic_and: each(to, a, b, [](Int x, Int y) { return x & y; }); return;
    case Op::bit_xor: each(to, a, b, [](Int x, Int y) { return x ^ y; }); return;
    case Op::bit_or:
    case Op::logic_or: each(to, a, b, [](Int x, Int y) { return x | y; }); return;
    case Op::select: {
      const Int* c = values[node.operands[2]].integers;
      for (int i = 0; i < kLanes; ++i) to[i] = a[i] != 0 ? b[i] : c[i];
      return;
    }
    case Op::absolute:
      each(to, a, a, [](Int x, Int) { return x < 0 ? wrapped(0U - bits(x)) : x; });
      return;
    case Op::least: each(to, a, b, [](Int x, Int y) { return x < y ? x : y; }); return;
    case Op::largest: each(to, a, b, [](Int x, Int y) { return x > y ? x : y; }); return;
    default: return;  // what is a number alone
  }
}

// A node that is a number.
DFA_WIDER_VECTORS void number_lanes(const ExpressionNode& node, Lanes* values, const float* scores,
                                    float* to) {
  const Lanes& left = values[std::max(node.operands[0], 0)];
  const float* a = left.numbers;
  const float* b = values[std::max(node.operands[1], 0)].numbers;
  switch (node.op) {
    case Op::constant: std::fill_n(to, kLanes, node.number); return;
    case Op::name: std::copy_n(scores, kLanes, to); return;
    case Op::to_number:
      for (int i = 0; i < kLanes; ++i) to[i] = static_cast<float>(left.integers[i]);
      return;
    case Op::negate: each(to, a, a, [](float x, float) { return -x; }); return;
    case Op::multiply: each(to, a, b, [](float x, float y) { return x * y; }); return;
    case Op::divide: each(to, a, b, [](float x, float y) { return x / y; }); return;
    case Op::add: each(to, a, b, [](float x, float y) { return x + y; }); return;
    case Op::subtract: each(to, a, b, [](float x, float y) { return x - y; }); return;
    case Op::select: {
      const float* c = values[node.operands[2]].numbers;
      for (int i = 0; i < kLanes; ++i) to[i] = left.integers[i] != 0 ? b[i] : c[i];
      return;
    }
    case Op::absolute: each(to, a, a, [](float x, float) { return std::fabs(x); }); return;
    case Op::least:
      each(to, a, b, [](float x, float y) { return x != x || y < x ? y : x; });
      return;
    case Op::largest:
      each(to, a, b, [](float x, float y) { return x != x || y > x ? y : x; });
      return;
    case Op::tanh: each(to, a, a, [](float x, float) { return std::tanh(x); }); return;
    case Op::exp: each(to, a, a, [](float x, float) { return std::exp(x); }); return;
    case Op::log: each(to, a, a, [](float x, float) { return std::log(x); }); return;
    case Op::sqrt: each(to, a, a, [](float x, float) { return std::sqrt(x); }); return;
    case Op::sin: each(to, a, a, [](float x, float) { return std::sin(x); }); return;
    case Op::cos: each(to, a, a, [](float x, float) { return std::cos(x); }); return;
    case Op::pow: each(to, a, b, [](float x, float y) { return std::pow(x, y); }); return;
    default: return;  // what is a boolean or an integer alone
  }
}

// The derivative of a number that moves with the score, by those of its operands. What stands still
// has none, also where the other factor is not finite.
DFA_WIDER_VECTORS void slope_lanes(const ExpressionNode& node, const Expression& all,
                                   const Lanes* values, const Lanes* slopes, const float* value,
                                   float* to) {
  const auto at = [&](int n) { return static_cast<std::size_t>(std::max(node.operands[n], 0)); };
  const float *a = values[at(0)].numbers, *b = values[at(1)].numbers;
  const float *da = slopes[at(0)].numbers, *db = slopes[at(1)].numbers;
  const bool moves_a = node.count() > 0 && all.nodes[at(0)].of_score;
  const bool moves_b = node.count() > 1 && all.nodes[at(1)].of_score;
  const auto set = [&](const auto& of) {
    for (int i = 0; i < kLanes; ++i) to[i] = of(i);
  };
  switch (node.op) {
    case Op::name: return set([](int) { return 1.0F; });
    case Op::negate: return set([&](int i) { return -da[i]; });
    case Op::add: return set([&](int i) { return da[i] + db[i]; });
    case Op::subtract: return set([&](int i) { return da[i] - db[i]; });
    case Op::multiply:
      if (!moves_b) return set([&](int i) { return da[i] * b[i]; });
      if (!moves_a) return set([&](int i) { return a[i] * db[i]; });
      return set([&](int i) { return da[i] * b[i] + a[i] * db[i]; });
    case Op::divide:
      if (!moves_b) return set([&](int i) { return da[i] / b[i]; });
      if (!moves_a) return set([&](int i) { return -value[i] * db[i] / b[i]; });
      return set([&](int i) { return (da[i] - value[i] * db[i]) / b[i]; });
    case Op::select: {
      const std::int32_t* chosen = values[at(0)].integers;
      const float* dc = slopes[at(2)].numbers;
      return set([&](int i) { return chosen[i] != 0 ? db[i] : dc[i]; });
    }
    case Op::absolute:
      return set([&](int i) { return a[i] > 0 ? da[i] : a[i] < 0 ? -da[i] : 0.0F; });
    case Op::least: return set([&](int i) { return a[i] != a[i] || b[i] < a[i] ? db[i] : da[i]; });
    case Op::largest:
      return set([&](int i) { return a[i] != a[i] || b[i] > a[i] ? db[i] : da[i]; });
    case Op::tanh: return set([&](int i) { return (1 - value[i] * value[i]) * da[i]; });
    case Op::exp: return set([&](int i) { return value[i] * da[i]; });
    case Op::log: return set([&](int i) { return da[i] / a[i]; });
    case Op::sqrt: return set([&](int i) { return da[i] / (2 * value[i]); });
    case Op::sin: return set([&](int i) { return std::cos(a[i]) * da[i]; });
    case Op::cos: return set([&](int i) { return -std::sin(a[i]) * da[i]; });
    case Op::pow: return set([&](int i) { return b[i] * std::pow(a[i], b[i] - 1) * da[i]; });
    default: return set([](int) { return 0.0F; });  // a float of what jumps with the score
  }
}

// `scores` and what comes out have kLanes; the result is the last node's.
void evaluate(const Expression& all, const Place& place, const float* scores, bool with_slopes,
              Evaluation& at) {
  for (std::size_t n = 0; n < all.nodes.size(); ++n) {
    const ExpressionNode& node = all.nodes[n];
    if (node.type != ValueType::number) {
      integer_lanes(node, all, place, at.values, at.values[n].integers);
      continue;
    }
    number_lanes(node, at.values, scores, at.values[n].numbers);
    if (!with_slopes) continue;
    if (node.of_score) {
      slope_lanes(node, all, at.values, at.slopes, at.values[n].numbers, at.slopes[n].numbers);
    } else {
      std::fill_n(at.slopes[n].numbers, kLanes, 0.0F);
    }
  }
}

Place place_of(const UserText& text, const TextRow& row, int first) {
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return {narrow(row.head.b),      narrow(row.head.h), narrow(row.query),
          narrow(row.key + first), text.sq(),          text.sk()};
}

}  // namespace

UserText::UserText(const Problem& p)
    : sq_(static_cast<std::int32_t>(p.sq)), sk_(static_cast<std::int32_t>(p.sk)) {
  if (!p.mask_mod.empty()) mask_ = parse_mask_mod(p.mask_mod);
  if (!p.score_mod.empty()) score_ = parse_score_mod(p.score_mod);
}

void transform_by_text(const UserText& text, const TextRow& row, float* scores, int count,
                       float* derivatives) {
  Evaluation at;
  const std::size_t result = text.score().nodes.size() - 1;
  const bool moves = text.score().nodes[result].of_score;
  for (int first = 0; first < count; first += kLanes) {
    const int lanes = std::min(kLanes, count - first);
    float some[kLanes] = {};
    std::copy_n(scores + first, lanes, some);
    evaluate(text.score(), place_of(text, row, first), some, derivatives != nullptr && moves, at);
    const float* logits = at.values[result].numbers;
    for (int i = 0; i < lanes; ++i) {
      const bool hidden = logits[i] < kBiasHides;
      scores[first + i] = hidden ? -std::numeric_limits<float>::infinity() : logits[i];
      if (derivatives == nullptr) continue;
      derivatives[first + i] = hidden || !moves ? 0.0F : at.slopes[result].numbers[i];
    }
  }
}

bool show_by_text(const UserText& text, const TextRow& row, std::uint8_t* shown, int count) {
  Evaluation at;
  constexpr float kNoScores[kLanes] = {};
  const std::size_t result = text.mask().nodes.size() - 1;
  bool any = false;
  for (int first = 0; first < count; first += kLanes) {
    evaluate(text.mask(), place_of(text, row, first), kNoScores, false, at);
    for (int i = 0; i < std::min(kLanes, count - first); ++i) {
      const bool sees = at.values[result].integers[i] != 0;
      shown[first + i] = sees ? 1 : 0;
      any = any || sees;
    }
  }
  return any;
}

}  // namespace dfa::cpu
