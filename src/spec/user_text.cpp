#include "spec/user_text.h"

#include "dfa/error.h"
#include "spec/expression.h"
#include "spec/quick_text.h"

namespace dfa {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// The length of a token of this name with its parentheses, or of what is left of the line where one
// does not close; 0 where it is another token.
std::size_t length_of_call(std::string_view rest, std::string_view name) {
  if (!rest.starts_with(name) || rest.size() == name.size() || rest[name.size()] != '(') return 0;
  int open = 0;
  for (std::size_t at = name.size(); at < rest.size(); ++at) {
    if (rest[at] == '(') ++open;
    if (rest[at] == ')' && --open == 0) return rest.find_first_of(kSpace, at);
  }
  return std::string_view::npos;
}

std::string shortest_text(const std::string& text, Expression (*parse)(std::string_view)) {
  return text.empty() ? text : expression_text(parse(text));
}

// As it is where it is wrong: a line is also what a message shows.
std::string shown_text(const char* name, const std::string& text,
                       Expression (*parse)(std::string_view)) {
  if (text.empty()) return "";
  std::string shown = text;
  try {
    shown = shortest_text(text, parse);
  } catch (const InvalidArgument&) {
  }
  return std::string(" ") + name + "(" + shown + ")";
}

bool is_constant(const Expression& all, int n) { return all.node(n).op == ExpressionOp::constant; }

int instructions_of(const Expression& all, const ExpressionNode& node, bool quick) {
  const bool number = node.type == ValueType::number;
  switch (node.op) {
    case ExpressionOp::constant:
    case ExpressionOp::name: return 0;
    case ExpressionOp::divide:
      if (number) return quick && quick_factor(all, node) != 0 ? 1 : 16;
      return is_constant(all, node.operands[1]) ? 6 : 30;
    case ExpressionOp::remainder: return is_constant(all, node.operands[1]) ? 6 : 30;
    case ExpressionOp::exp: return 12;
    case ExpressionOp::sqrt: return 16;
    case ExpressionOp::tanh: return quick && is_of_moving(all, node) ? 16 : 20;
    case ExpressionOp::log: return 20;
    case ExpressionOp::pow: return 75;
    case ExpressionOp::sin:
    case ExpressionOp::cos: return 120;
    default: return 1;
  }
}

int instructions_of(const Expression& all, bool quick) {
  int sum = 0;
  for (const ExpressionNode& node : all.nodes) sum += instructions_of(all, node, quick);
  return sum;
}

void require_countable(const char* name, std::int64_t value) {
  if (value <= kMostExpressionSize) return;
  throw InvalidArgument(std::string("problem: ") + name + "=" + std::to_string(value) +
                        " beside mask_mod(…) or score_mod(…); accepted: up to 2^31 - 1");
}

}  // namespace

Problem with_short_text(Problem problem) {
  problem.mask_mod = shortest_text(problem.mask_mod, parse_mask_mod);
  problem.score_mod = shortest_text(problem.score_mod, parse_score_mod);
  return problem;
}

std::string user_text(const Problem& p) {
  return shown_text("mask_mod", p.mask_mod, parse_mask_mod) +
         shown_text("score_mod", p.score_mod, parse_score_mod);
}

int instructions_of_texts(const Problem& p) {
  const bool quick = bytes_of(p.dtype) == 2;
  return (p.mask_mod.empty() ? 0 : instructions_of(parse_mask_mod(p.mask_mod), quick)) +
         (p.score_mod.empty() ? 0 : instructions_of(parse_score_mod(p.score_mod), quick));
}

void require_user_text(const Problem& p) {
  if (!p.has_text()) return;
  require_countable("b", p.b);
  require_countable("hq", p.hq);
  require_countable("sq", p.sq);
  require_countable("sk", p.sk);
  for (const bool of_mask : {true, false}) {
    const std::string& text = of_mask ? p.mask_mod : p.score_mod;
    if (text.empty()) continue;
    const Expression expression = of_mask ? parse_mask_mod(text) : parse_score_mod(text);
    if (p.batch_invariant && expression.names(ExpressionName::b)) {
      throw InvalidArgument(
          std::string("problem: batch_invariant beside ") + (of_mask ? "mask_mod" : "score_mod") +
          "(…) that names b, the number of a sequence in its call; accepted: one of them");
    }
  }
}

std::vector<std::string_view> tokens_of(std::string_view line) {
  std::vector<std::string_view> tokens;
  for (std::size_t at = line.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const std::string_view rest = line.substr(at);
    std::size_t length = length_of_call(rest, "mask_mod");
    if (length == 0) length = length_of_call(rest, "score_mod");
    if (length == 0) length = rest.find_first_of(kSpace);
    tokens.push_back(rest.substr(0, length));
    at = length == std::string_view::npos ? length : line.find_first_not_of(kSpace, at + length);
  }
  return tokens;
}

}  // namespace dfa
