#include "profile/nearest.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/pack_gqa.h"
#include "spec/flops.h"
#include "spec/lengths.h"

namespace dfa::profile {
namespace {

constexpr double kFar = 2;  // in logarithms of two, of one size

// What does not make a kind is blanked, so that whatever problems may come to have makes one.
Problem kind_of(Problem p) {
  const Problem none;
  p.b = none.b;
  p.hq = none.hq;
  p.hk = none.hk;
  p.sq = none.sq;
  p.sk = none.sk;
  p.scale = none.scale;
  p.layout = none.layout;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{};
  if (p.pass == Pass::forward) p.deterministic = none.deterministic;  // it is of gradients
  return p;
}

// Where heads are packed otherwise a configuration may not be legal, and costs something else.
bool same_kind(const Problem& a, const Problem& b) {
  return kind_of(a) == kind_of(b) && heads_of_a_tile(a) == heads_of_a_tile(b);
}

double distance(const Problem& a, const Problem& b) {
  const auto apart = [](std::int64_t x, std::int64_t y) {
    return std::abs(std::log2(static_cast<double>(x) / static_cast<double>(y)));
  };
  const double queries = apart(a.sq, b.sq), keys = apart(a.sk, b.sk);
  const double heads = apart(a.b * a.hq, b.b * b.hq);
  if (std::max({queries, keys, heads}) > kFar) return std::numeric_limits<double>::infinity();
  return queries * queries + keys * keys + heads * heads;
}

Row scaled(Row row, const Problem& from, const Problem& to) {
  const double work = asked_flops(to) / asked_flops(from);
  const double queries =
      static_cast<double>(to.b * to.hq * to.sq) / static_cast<double>(from.b * from.hq * from.sq);
  row.point.time_s *= work;
  if (row.point.energy_j) *row.point.energy_j *= work;
  row.point.memory_bytes =
      static_cast<std::int64_t>(static_cast<double>(row.point.memory_bytes) * queries);
  return row;
}

}  // namespace

Nearest nearest(const std::vector<Row>& rows, const Problem& wanted) {
  require_plain(wanted, "profiles");
  const std::string line = to_line(wanted);
  Nearest found;
  double least = std::numeric_limits<double>::infinity();
  for (const Row& row : rows) {
    const bool exact = row.problem == line;
    const Problem problem = parse_problem(row.problem);
    if (!exact && !same_kind(problem, wanted)) continue;
    const double far = exact ? -1 : distance(problem, wanted);  // no other is as near
    if (!(far < least) && row.problem != found.problem) continue;
    if (row.problem != found.problem) found = {.problem = row.problem, .exact = exact};
    least = far;
    found.rows.push_back(exact ? row : scaled(row, problem, wanted));
  }
  return found;
}

}  // namespace dfa::profile
