#include "spec/expression_source.h"

#include <cmath>

#include "spec/expression.h"
#include "spec/quick_text.h"

namespace dfa {
namespace {

std::string name_source(ExpressionName name) {
  switch (name) {
    case ExpressionName::score: return "score";
    case ExpressionName::b: return "at.b";
    case ExpressionName::h: return "at.h";
    case ExpressionName::q_idx: return "at.q_idx";
    case ExpressionName::kv_idx: return "at.kv_idx";
    case ExpressionName::sq: return "at.sq";
    case ExpressionName::sk: return "at.sk";
  }
  return "";
}

const char* type_source(ValueType type) {
  return type == ValueType::boolean ? "bool" : type == ValueType::integer ? "int" : "float";
}

// Values are v0, v1, … and derivatives d0, d1, …, behind a letter for each tree. `quick`: what
// moves with the score has no more digits than an engine of 16 bits.
class Statements {
 public:
  Statements(const Expression& all, std::string prefix, bool quick)
      : all_(all), prefix_(std::move(prefix)), quick_(quick) {
    for (std::size_t n = 0; n < all.nodes.size(); ++n) add(static_cast<int>(n));
  }

  const std::string& text() const { return text_; }
  std::string result() const { return value(last()); }
  std::string slope_of_result() const { return slope(last()); }

 private:
  using Op = ExpressionOp;

  int last() const { return static_cast<int>(all_.nodes.size()) - 1; }
  std::string value(int n) const { return prefix_ + "v" + std::to_string(n); }
  bool moves(int n) const { return moves_with_score(all_.node(n)); }
  // Of a division: what to multiply by in its place, "" where there is nothing.
  std::string factor_of(const ExpressionNode& division) const {
    const float factor = quick_ ? quick_factor(all_, division) : 0;
    if (factor == 0) return "";
    return constant_text({.type = ValueType::number, .number = factor});
  }
  std::string slope(int n) const { return moves(n) ? prefix_ + "d" + std::to_string(n) : "0.0f"; }

  void add(int n) {
    const ExpressionNode& node = all_.node(n);
    declare(type_source(node.type), value(n), value_source(node));
    if (moves(n)) declare("float", slope(n), slope_source(n));
  }
  void declare(const char* type, const std::string& name, const std::string& source) {
    text_ +=
        std::string("    [[maybe_unused]] const ") + type + " " + name + " = " + source + ";\n";
  }

  std::string value_source(const ExpressionNode& node) const {
    const auto of = [&](int i) { return value(node.operands[i]); };
    const auto call = [&](const char* name) {
      return std::string(name) + "(" + of(0) + (node.count() == 2 ? ", " + of(1) : "") + ")";
    };
    const auto infix = [&](const char* sign) { return of(0) + " " + sign + " " + of(1); };
    switch (node.op) {
      case Op::constant: return std::isinf(node.number) ? "ptx::infinity()" : constant_text(node);
      case Op::name: return name_source(node.name);
      case Op::to_boolean: return of(0) + " != 0";
      case Op::to_integer:
        return all_.node(node.operands[0]).type == ValueType::number ? call("text::truncate")
                                                                     : of(0) + " ? 1 : 0";
      case Op::to_number: return "static_cast<float>(" + of(0) + ")";
      case Op::negate: return call("text::negate");
      case Op::logic_not: return "!" + of(0);
      case Op::bit_not: return "~" + of(0);
      case Op::multiply: return call("text::multiply");
      case Op::divide: {
        const std::string factor = factor_of(node);
        return factor.empty() ? call("text::divide")
                              : "text::multiply(" + of(0) + ", " + factor + ")";
      }
      case Op::remainder: return call("text::remainder");
      case Op::add: return call("text::add");
      case Op::subtract: return call("text::subtract");
      case Op::shift_left: return call("text::shift_left");
      case Op::shift_right: return call("text::shift_right");
      case Op::less:
      case Op::less_equal:
      case Op::greater:
      case Op::greater_equal:
      case Op::equal:
      case Op::not_equal:
      case Op::bit_and:
      case Op::bit_xor:
      case Op::bit_or:
      case Op::logic_and:
      case Op::logic_or: return infix(expression_symbol(node.op));
      case Op::select: return of(0) + " ? " + of(1) + " : " + of(2);
      case Op::absolute: return call("text::absolute");
      case Op::least: return call("text::least");
      case Op::largest: return call("text::largest");
      case Op::tanh: return call(quick_ && is_of_moving(all_, node) ? "quick_tanh" : "tanhf");
      case Op::exp: return call("expf");
      case Op::log: return call("logf");
      case Op::sqrt: return call("sqrtf");
      case Op::sin: return call("sinf");
      case Op::cos: return call("cosf");
      case Op::pow: return call("powf");
    }
    return "";
  }

  // What stands still adds no term, also where the other factor is not finite.
  std::string slope_source(int n) const {
    const ExpressionNode& node = all_.node(n);
    const auto v = [&](int i) { return value(node.operands[i]); };
    const auto d = [&](int i) { return slope(node.operands[i]); };
    const auto is_moved = [&](int i) { return moves(node.operands[i]); };
    const std::string own = value(n);
    switch (node.op) {
      case Op::name: return "1.0f";
      case Op::negate: return "-" + d(0);
      case Op::add: return d(0) + " + " + d(1);
      case Op::subtract: return d(0) + " - " + d(1);
      case Op::multiply:
        if (!is_moved(1)) return d(0) + " * " + v(1);
        if (!is_moved(0)) return v(0) + " * " + d(1);
        return d(0) + " * " + v(1) + " + " + v(0) + " * " + d(1);
      case Op::divide:
        if (const std::string factor = factor_of(node); !factor.empty())
          return d(0) + " * " + factor;
        if (!is_moved(1)) return d(0) + " / " + v(1);
        if (!is_moved(0)) return "-" + own + " * " + d(1) + " / " + v(1);
        return "(" + d(0) + " - " + own + " * " + d(1) + ") / " + v(1);
      case Op::select: return v(0) + " ? " + d(1) + " : " + d(2);
      case Op::absolute:
        return v(0) + " > 0 ? " + d(0) + " : " + v(0) + " < 0 ? -" + d(0) + " : 0.0f";
      case Op::least:
        return "text::takes_second_least(" + v(0) + ", " + v(1) + ") ? " + d(1) + " : " + d(0);
      case Op::largest:
        return "text::takes_second_largest(" + v(0) + ", " + v(1) + ") ? " + d(1) + " : " + d(0);
      case Op::tanh: return "(1 - " + own + " * " + own + ") * " + d(0);
      case Op::exp: return own + " * " + d(0);
      case Op::log: return d(0) + " / " + v(0);
      case Op::sqrt: return d(0) + " / (2 * " + own + ")";
      case Op::sin: return "cosf(" + v(0) + ") * " + d(0);
      case Op::cos: return "-sinf(" + v(0) + ") * " + d(0);
      case Op::pow: return v(1) + " * powf(" + v(0) + ", " + v(1) + " - 1) * " + d(0);
      default: return "0.0f";  // a float of what jumps with the score
    }
  }

  const Expression& all_;
  std::string prefix_, text_;
  bool quick_;
};

}  // namespace

std::string user_text_source(const Problem& p) {
  std::string text =
      "#include \"kernels/variant/user_text.cuh\"\n"
      "namespace dfa {\n"
      "template <>\n"
      "struct UserText<true> {\n"
      "  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, "
      "float& share) {\n";
  const bool quick = bytes_of(p.dtype) == 2;
  // A thread's logits are made side by side: a branch for each would make them one after the other.
  const bool hides = !p.mask_mod.empty();
  if (hides) {
    const Expression expression = parse_mask_mod(p.mask_mod);
    const Statements mask(expression, "m", quick);
    text += mask.text() + "    const bool shown = " + mask.result() + ";\n";
  }
  std::string logit = "score", slope = "1";
  if (!p.score_mod.empty()) {
    const Expression expression = parse_score_mod(p.score_mod);
    const Statements score(expression, "s", quick);
    text += score.text();
    logit = score.result();
    slope = score.slope_of_result();
  }
  text += "    share = " + slope + ";\n    return " +
          (hides ? "shown ? " + logit + " : -ptx::infinity()" : logit) + ";\n";
  return text + "  }\n};\n}  // namespace dfa\n";
}

}  // namespace dfa
