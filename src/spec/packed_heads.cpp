#include "spec/packed_heads.h"

#include <optional>

#include "spec/flops.h"

namespace dfa {
namespace {

constexpr std::int64_t kRows = 128;  // of most tiles

std::int64_t tiles(std::int64_t rows) { return (rows + kRows - 1) / kRows; }

bool fills_tiles_better(const Problem& p, std::int64_t group) {
  return 10 * tiles(group * p.sq) <= 9 * group * tiles(p.sq);
}

// Of a tensor with a group's heads behind one another as rows. A head stride of 0 or the like, as
// of heads that are expanded from one, cannot become a row stride.
std::optional<Strides> packed(const Strides& s, std::int64_t group, std::int64_t rows,
                              std::int64_t columns) {
  if (rows > 1 ? s.head != rows * s.row : s.head < columns) return std::nullopt;
  return Strides{.batch = s.batch, .head = group * s.head, .row = rows > 1 ? s.row : s.head};
}

}  // namespace

Problem with_packed_heads(const Problem& p) {
  const std::int64_t group = p.hq / p.hk;
  if (group == 1 || hides_keys(p) || !fills_tiles_better(p, group)) return p;
  const auto q = packed(p.q(), group, p.sq, p.d), o = packed(p.o(), group, p.sq, p.dv);
  if (!q || !o) return p;
  Problem all = p;
  all.hq = p.hk;
  all.sq = group * p.sq;
  all.mask = kFull;
  all.q_strides = *q;
  all.o_strides = *o;
  return all;
}

std::string rows_of_heads(const Problem& asked, const Problem& worked_on) {
  if (asked.hq == worked_on.hq) return "";
  return "; rows of a tile are of " + std::to_string(asked.hq / worked_on.hq) +
         " query heads, which read the same keys";
}

}  // namespace dfa
