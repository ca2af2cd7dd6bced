#include "spec/expression.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "dfa/error.h"

namespace dfa {
namespace {

using Op = ExpressionOp;

struct NameText {
  std::string_view text;
  ExpressionName name;
};
constexpr NameText kExpressionNames[] = {
    {"score", ExpressionName::score},   {"b", ExpressionName::b},
    {"h", ExpressionName::h},           {"q_idx", ExpressionName::q_idx},
    {"kv_idx", ExpressionName::kv_idx}, {"sq", ExpressionName::sq},
    {"sk", ExpressionName::sk}};

// How tightly operators bind, as in C++: more is tighter. 0: ?:.
struct Binary {
  std::string_view text;
  Op op;
  int tightness;
};
constexpr Binary kBinaries[] = {
    {"*", Op::multiply, 10},    {"/", Op::divide, 10},        {"%", Op::remainder, 10},
    {"+", Op::add, 9},          {"-", Op::subtract, 9},       {"<<", Op::shift_left, 8},
    {">>", Op::shift_right, 8}, {"<", Op::less, 7},           {"<=", Op::less_equal, 7},
    {">", Op::greater, 7},      {">=", Op::greater_equal, 7}, {"==", Op::equal, 6},
    {"!=", Op::not_equal, 6},   {"&", Op::bit_and, 5},        {"^", Op::bit_xor, 4},
    {"|", Op::bit_or, 3},       {"&&", Op::logic_and, 2},     {"||", Op::logic_or, 1}};
constexpr int kUnary = 11, kPrimary = 12;

struct Function {
  std::string_view text;
  Op op;
  int arguments;
  bool of_numbers;  // an int becomes a float
};
// The first of an operation is its spelling.
constexpr Function kFunctions[] = {
    {"int", Op::to_integer, 1, false}, {"float", Op::to_number, 1, true},
    {"abs", Op::absolute, 1, false},   {"fabs", Op::absolute, 1, true},
    {"fabsf", Op::absolute, 1, true},  {"min", Op::least, 2, false},
    {"fmin", Op::least, 2, true},      {"fminf", Op::least, 2, true},
    {"max", Op::largest, 2, false},    {"fmax", Op::largest, 2, true},
    {"fmaxf", Op::largest, 2, true},   {"tanh", Op::tanh, 1, true},
    {"tanhf", Op::tanh, 1, true},      {"exp", Op::exp, 1, true},
    {"expf", Op::exp, 1, true},        {"log", Op::log, 1, true},
    {"logf", Op::log, 1, true},        {"sqrt", Op::sqrt, 1, true},
    {"sqrtf", Op::sqrt, 1, true},      {"sin", Op::sin, 1, true},
    {"sinf", Op::sin, 1, true},        {"cos", Op::cos, 1, true},
    {"cosf", Op::cos, 1, true},        {"pow", Op::pow, 2, true},
    {"powf", Op::pow, 2, true}};

const Binary* binary_of(Op op) {
  const auto* found = std::ranges::find(kBinaries, op, &Binary::op);
  return found == std::end(kBinaries) ? nullptr : found;
}

constexpr std::string_view type_text(ValueType type) {
  return type == ValueType::boolean ? "bool" : type == ValueType::integer ? "int" : "float";
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool begins_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

struct Token {
  enum class Kind { end, number, word, sign } kind = Kind::end;
  std::string_view text;
  std::size_t at = 0;  // from 0 on
};

class ExpressionParser {
 public:
  ExpressionParser(std::string_view what, std::string_view text, bool has_score)
      : what_(what), text_(text), has_score_(has_score) {
    if (text.size() > kMostExpressionText) {
      fail(kMostExpressionText, "more than " + std::to_string(kMostExpressionText) + " characters");
    }
    advance();
  }

  Expression parse(ValueType wanted) {
    int root = conditional();
    if (token_.kind != Token::Kind::end) fail(token_.at, "unexpected " + shown(token_));
    const ValueType type = type_of(root);
    if (wanted == ValueType::boolean && type != wanted) {
      fail(0, "the result is " + std::string(type_text(type)) +
                  "; a mask is a bool, such as 'kv_idx <= q_idx'");
    }
    if (wanted == ValueType::number) {
      if (type == ValueType::boolean) fail(0, "the result is bool; a logit is a float");
      root = converted(root, wanted);
    }
    return std::move(all_);
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& why) const {
    throw InvalidArgument(std::string(what_) + ": column " + std::to_string(at + 1) + ": " + why);
  }

  // In quotes, bytes that a message cannot have as numbers.
  static std::string shown(const Token& token) {
    if (token.kind == Token::Kind::end) return "the end";
    constexpr std::size_t kMost = 40;
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text = "'";
    for (const char c : token.text.substr(0, kMost)) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x20 && byte < 0x7f) {
        text += c;
      } else {
        text += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
      }
    }
    return text + (token.text.size() > kMost ? "...'" : "'");
  }

  // ---- tokens

  void advance() {
    std::size_t at = token_.at + token_.text.size();
    while (at < text_.size() && (text_[at] == ' ' || (text_[at] >= '\t' && text_[at] <= '\r')))
      ++at;
    token_ = {Token::Kind::end, {}, at};
    if (at == text_.size()) return;
    const std::string_view rest = text_.substr(at);
    if (is_digit(rest[0]) || (rest[0] == '.' && rest.size() > 1 && is_digit(rest[1]))) {
      token_ = {Token::Kind::number, rest.substr(0, number_length(rest)), at};
    } else if (begins_word(rest[0])) {
      std::size_t end = 1;
      while (end < rest.size() && (begins_word(rest[end]) || is_digit(rest[end]))) ++end;
      token_ = {Token::Kind::word, rest.substr(0, end), at};
      if (token_.text == "and") sign("&&");
      if (token_.text == "or") sign("||");
      if (token_.text == "not") sign("!");
    } else {
      token_ = {Token::Kind::sign, rest.substr(0, sign_length(rest)), at};
      sign_ = token_.text;
    }
  }
  void sign(std::string_view meaning) {
    token_.kind = Token::Kind::sign;
    sign_ = meaning;
  }

  // Digits, letters and signs of exponents: what is no number is refused as one piece.
  static std::size_t number_length(std::string_view rest) {
    std::size_t end = 0;
    while (end < rest.size()) {
      const char c = rest[end];
      const bool exponent = end > 0 && (rest[end - 1] == 'e' || rest[end - 1] == 'E');
      if (!is_digit(c) && !begins_word(c) && c != '.' && !(exponent && (c == '+' || c == '-')))
        break;
      ++end;
    }
    return end;
  }
  static std::size_t sign_length(std::string_view rest) {
    for (const std::string_view two :
         {"<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--"}) {
      if (rest.starts_with(two)) return 2;
    }
    return 1;
  }
  bool is_sign(std::string_view text) const {
    return token_.kind == Token::Kind::sign && sign_ == text;
  }
  void take(std::string_view text) {
    if (!is_sign(text)) {
      fail(token_.at, "expected '" + std::string(text) + "' " +
                          (token_.kind == Token::Kind::end ? "at " : "before ") + shown(token_));
    }
    advance();
  }

  // ---- nodes

  ValueType type_of(int index) const { return all_.node(index).type; }

  int add(ExpressionNode node) {
    for (int i = 0; i < node.count(); ++i) {
      // Of a score that a comparison or a conversion cuts into steps nothing moves smoothly.
      node.of_score = node.of_score || all_.node(node.operands[i]).of_score;
    }
    if (all_.nodes.size() == kMostExpressionNodes) {
      fail(token_.at, "more than " + std::to_string(kMostExpressionNodes) + " operations");
    }
    all_.nodes.push_back(node);
    return static_cast<int>(all_.nodes.size()) - 1;
  }

  int converted(int operand, ValueType type, bool written = false) {
    if (type_of(operand) == type) return operand;
    const Op op = type == ValueType::boolean   ? Op::to_boolean
                  : type == ValueType::integer ? Op::to_integer
                                               : Op::to_number;
    return add({.op = op, .type = type, .written = written, .operands = {operand, -1, -1}});
  }

  // A bool is an int in arithmetic.
  static ValueType promoted(ValueType type) {
    return type == ValueType::boolean ? ValueType::integer : type;
  }
  ValueType common(int a, int b) const {
    return std::max({ValueType::integer, type_of(a), type_of(b)});
  }

  int binary(const Token& sign, const Binary& of, int a, int b) {
    using enum ValueType;
    ValueType operands = common(a, b), result = operands;
    switch (of.op) {
      case Op::logic_and:
      case Op::logic_or: operands = result = boolean; break;
      case Op::less:
      case Op::less_equal:
      case Op::greater:
      case Op::greater_equal:
      case Op::equal:
      case Op::not_equal: result = boolean; break;
      case Op::bit_and:
      case Op::bit_xor:
      case Op::bit_or:
        // C++ has an int of the same value.
        if (type_of(a) == boolean && type_of(b) == boolean) operands = result = boolean;
        [[fallthrough]];
      case Op::remainder:
      case Op::shift_left:
      case Op::shift_right:
        if (operands == number) {
          fail(sign.at, "'" + std::string(of.text) + "' is of ints, not of a float");
        }
        break;
      default: break;
    }
    const bool divides = of.op == Op::divide || of.op == Op::remainder;
    const ExpressionNode& divisor = all_.node(b);
    if (divides && operands == integer && divisor.op == Op::constant && divisor.integer == 0) {
      fail(sign.at, "division by zero");
    }
    a = converted(a, operands);
    b = converted(b, operands);
    return add({.op = of.op, .type = result, .operands = {a, b, -1}});
  }

  // ---- grammar

  struct Deeper {
    explicit Deeper(ExpressionParser& of) : parser(of) {
      if (++parser.depth_ > kMostExpressionDepth) {
        parser.fail(parser.token_.at,
                    "deeper than " + std::to_string(kMostExpressionDepth) + " levels");
      }
    }
    ~Deeper() { --parser.depth_; }
    ExpressionParser& parser;
  };

  int conditional() {
    const Deeper deeper(*this);
    const int condition = operators(1);
    if (!is_sign("?")) return condition;
    advance();
    int yes = conditional();
    take(":");
    int no = conditional();
    const bool booleans = type_of(yes) == ValueType::boolean && type_of(no) == ValueType::boolean;
    const ValueType type = booleans ? ValueType::boolean : common(yes, no);
    const int chosen = converted(condition, ValueType::boolean);
    yes = converted(yes, type);
    no = converted(no, type);
    return add({.op = Op::select, .type = type, .operands = {chosen, yes, no}});
  }

  const Binary* operator_here() const {
    if (token_.kind != Token::Kind::sign) return nullptr;
    const auto* found = std::ranges::find(kBinaries, sign_, &Binary::text);
    return found == std::end(kBinaries) ? nullptr : found;
  }

  // Operators that bind at least so tightly, those of one tightness from the left.
  int operators(int least) {
    int left = unary();
    for (const Binary* here = operator_here(); here != nullptr && here->tightness >= least;
         here = operator_here()) {
      const Token sign = token_;
      advance();
      const int right = operators(here->tightness + 1);
      left = binary(sign, *here, left, right);
    }
    return left;
  }

  int unary() {
    const Token sign = token_;
    if (!is_sign("!") && !is_sign("-") && !is_sign("+") && !is_sign("~")) return primary();
    const Deeper deeper(*this);
    if (is_sign("!")) {
      advance();
      return add({.op = Op::logic_not,
                  .type = ValueType::boolean,
                  .operands = {converted(unary(), ValueType::boolean), -1, -1}});
    }
    const bool plus = is_sign("+"), bits = is_sign("~");
    advance();
    const int operand = unary();
    const ValueType type = promoted(type_of(operand));
    if (bits && type == ValueType::number) fail(sign.at, "'~' is of ints, not of a float");
    const int of = converted(operand, type, plus);
    if (plus) return of;
    return add({.op = bits ? Op::bit_not : Op::negate, .type = type, .operands = {of, -1, -1}});
  }

  int primary() {
    const Token token = token_;
    if (token.kind == Token::Kind::number) {
      advance();
      return number(token);
    }
    if (token.kind == Token::Kind::word) {
      advance();
      return is_sign("(") ? call(token) : name(token);
    }
    if (is_sign("(")) {
      advance();
      const int inner = conditional();
      take(")");
      return inner;
    }
    fail(token.at, "expected a value " +
                       std::string(token.kind == Token::Kind::end ? "at " : "before ") +
                       shown(token));
  }

  int name(const Token& token) {
    if (token.text == "true" || token.text == "false") {
      return add({.type = ValueType::boolean, .integer = token.text == "true" ? 1 : 0});
    }
    if (token.text == "INFINITY") {
      return add({.type = ValueType::number, .number = std::numeric_limits<float>::infinity()});
    }
    for (const NameText& known : kExpressionNames) {
      if (token.text != known.text) continue;
      if (known.name != ExpressionName::score) {
        return add({.op = Op::name, .type = ValueType::integer, .name = known.name});
      }
      if (!has_score_) fail(token.at, "'score' is of a score_mod, not of a mask");
      return add({.op = Op::name,
                  .type = ValueType::number,
                  .of_score = true,
                  .name = ExpressionName::score});
    }
    if (std::ranges::find(kFunctions, token.text, &Function::text) != std::end(kFunctions)) {
      fail(token_.at, "expected '(' after " + shown(token));
    }
    fail(token.at, "unknown name " + shown(token) + "; accepted: " + (has_score_ ? "score, " : "") +
                       "b, h, q_idx, kv_idx, sq, sk");
  }

  int call(const Token& token) {
    const auto* function = std::ranges::find(kFunctions, token.text, &Function::text);
    if (function == std::end(kFunctions)) {
      fail(token.at,
           "unknown function " + shown(token) +
               "; accepted: abs, min, max, tanh, exp, log, sqrt, sin, cos, pow, int, float");
    }
    take("(");
    int first = conditional(), second = -1;
    if (function->arguments == 2) {
      if (!is_sign(",")) fail(token_.at, shown(token) + " has two arguments");
      advance();
      second = conditional();
    }
    if (is_sign(",")) {
      fail(token_.at,
           shown(token) + " has " + (function->arguments == 1 ? "one argument" : "two arguments"));
    }
    take(")");
    const Op op = function->op;
    if (op == Op::to_integer) {
      if (type_of(first) == ValueType::number && all_.node(first).of_score) {
        fail(token.at, "int(...) of the score has no derivative");
      }
      return converted(first, ValueType::integer, true);
    }
    if (op == Op::to_number) return converted(first, ValueType::number, true);
    if (op == Op::pow && all_.node(second).of_score) {
      fail(token.at,
           "an exponent that moves with the score is not accepted; write exp(y * log(x))");
    }
    ValueType type = function->of_numbers ? ValueType::number : promoted(type_of(first));
    if (second >= 0 && !function->of_numbers) type = common(first, second);
    first = converted(first, type);
    if (second >= 0) second = converted(second, type);
    return add({.op = op, .type = type, .operands = {first, second, -1}});
  }

  int number(const Token& token) {
    std::string_view text = token.text;
    if (std::ranges::all_of(text, is_digit)) {
      if (text.size() > 1 && text[0] == '0') {
        fail(token.at, "integer " + shown(token) + " begins with 0, an octal number of C++");
      }
      std::int32_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc{}) fail(token.at, "integer " + shown(token) + " does not fit an int");
      return add({.type = ValueType::integer, .integer = value});
    }
    const bool suffix = text.back() == 'f' || text.back() == 'F';
    if (suffix) text.remove_suffix(1);
    float value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // C++ has no suffix f behind an integer.
    const bool plain = std::ranges::all_of(text, is_digit);
    if (end != text.data() + text.size() || (suffix && plain)) {
      fail(token.at, shown(token) + " is no number");
    }
    if (error != std::errc{}) fail(token.at, "number " + shown(token) + " does not fit a float");
    return add({.type = ValueType::number, .number = value});
  }

  std::string_view what_, text_;
  bool has_score_;
  Token token_{};
  std::string_view sign_;  // what a sign means: that of `and` is &&
  int depth_ = 0;
  Expression all_;
};

// An operation's text and how tightly it binds.
struct Piece {
  std::string text;
  int tightness = kPrimary;

  std::string within(int least) const { return tightness < least ? "(" + text + ")" : text; }
};

Piece piece_of(const ExpressionNode& node, const std::vector<Piece>& pieces) {
  const auto operand = [&](int i) -> const Piece& {
    return pieces[static_cast<std::size_t>(node.operands[i])];
  };
  if (node.op == Op::constant) return {constant_text(node)};
  if (node.op == Op::name) {
    return {std::string(std::ranges::find(kExpressionNames, node.name, &NameText::name)->text)};
  }
  if (!node.written) return operand(0);
  if (node.op == Op::select) {
    return {operand(0).within(1) + "?" + operand(1).text + ":" + operand(2).text, 0};
  }
  const std::string symbol = expression_symbol(node.op);
  if (node.op == Op::negate || node.op == Op::logic_not || node.op == Op::bit_not) {
    // Two minuses side by side would be another operator.
    return {symbol + operand(0).within(kPrimary), kUnary};
  }
  if (const Binary* binary = binary_of(node.op)) {
    const Piece& right = operand(1);
    const bool signs = right.text[0] == '-' && right.tightness == kUnary;
    return {operand(0).within(binary->tightness) + symbol +
                right.within(signs ? kPrimary : binary->tightness + 1),
            binary->tightness};
  }
  std::string text = symbol + "(" + operand(0).text;
  if (node.count() == 2) text += "," + operand(1).text;
  return {text + ")"};
}

}  // namespace

bool Expression::names(ExpressionName name) const {
  return std::ranges::any_of(
      nodes, [&](const ExpressionNode& node) { return node.op == Op::name && node.name == name; });
}

Expression parse_mask_mod(std::string_view text) {
  return ExpressionParser("mask_mod", text, false).parse(ValueType::boolean);
}

Expression parse_score_mod(std::string_view text) {
  return ExpressionParser("score_mod", text, true).parse(ValueType::number);
}

std::string expression_text(const Expression& expression) {
  std::vector<Piece> pieces;
  for (const ExpressionNode& node : expression.nodes) pieces.push_back(piece_of(node, pieces));
  return pieces.back().text;
}

std::string constant_text(const ExpressionNode& node) {
  if (node.type == ValueType::boolean) return node.integer != 0 ? "true" : "false";
  if (node.type == ValueType::integer) return std::to_string(node.integer);
  if (std::isinf(node.number)) return "INFINITY";
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, node.number);
  std::string number(text, end);
  if (number.find_first_of(".e") == std::string::npos) number += ".0";
  return number + "f";
}

const char* expression_symbol(ExpressionOp op) {
  if (op == Op::negate) return "-";
  if (op == Op::logic_not) return "!";
  if (op == Op::bit_not) return "~";
  if (const Binary* binary = binary_of(op)) return binary->text.data();
  const auto* function = std::ranges::find(kFunctions, op, &Function::op);
  return function == std::end(kFunctions) ? "" : function->text.data();
}

}  // namespace dfa
