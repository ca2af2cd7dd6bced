#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "python/bindings/core.h"
#include "spec/expression.h"
#include "spec/user_text.h"

namespace nb = nanobind;
using namespace nb::literals;

// mask_mod and score_mod of the caller's own (docs/design/0036-user-text.md).
namespace dfa::python {
namespace {

std::tuple<std::string, std::string> short_texts(const std::string& mask_mod,
                                                 const std::string& score_mod) {
  Problem problem;
  problem.mask_mod = mask_mod;
  problem.score_mod = score_mod;
  problem = with_short_text(problem);
  return {problem.mask_mod, problem.score_mod};
}

// An operation as Python walks it: its symbol, "" of a conversion to bool, of a name its text and
// of a constant "="; its type; a constant's value, which a double has without loss; and its
// operands.
using Node = std::tuple<std::string, std::string, double, std::vector<int>>;

Node node_of(const ExpressionNode& node) {
  constexpr const char* kTypes[] = {"bool", "int", "float"};
  std::string symbol = expression_symbol(node.op);
  if (node.op == ExpressionOp::constant) symbol = "=";
  if (node.op == ExpressionOp::name) symbol = expression_text({{node}});
  const double value =
      node.type == ValueType::number ? static_cast<double>(node.number) : node.integer;
  return {symbol, kTypes[static_cast<int>(node.type)], value,
          std::vector<int>(node.operands, node.operands + node.count())};
}

std::vector<Node> mask_mod_nodes(const std::string& text) {
  std::vector<Node> nodes;
  for (const ExpressionNode& node : parse_mask_mod(text).nodes) nodes.push_back(node_of(node));
  return nodes;
}

}  // namespace

void bind_texts(nb::module_& core) {
  core.def("short_texts", &short_texts, "mask_mod"_a, "score_mod"_a,
           "Both in their shortest spelling, \"\" for none. Raises ValueError where one is wrong.");
  core.def("mask_mod_nodes", &mask_mod_nodes, "text"_a,
           "(symbol, type, value, operands) of each operation, operands first.");
}

}  // namespace dfa::python
