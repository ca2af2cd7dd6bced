#include "plan/pack_gqa.h"

#include <algorithm>
#include <optional>

#include "plan/validate_gpu.h"
#include "spec/config.h"
#include "spec/flops.h"
#include "spec/passes.h"

namespace dfa {
namespace {

constexpr std::int64_t kRows = 128;  // of most tiles

std::int64_t tiles(std::int64_t rows) { return (rows + kRows - 1) / kRows; }

// That a query takes of so many packed heads.
int rows_of(int heads) { return ForwardConfig{.pack_gqa = heads}.query_rows(); }

// In Hopper's forward, whatever they would gain together.
bool heads_stay_apart(const Problem& p) {
  return p.packed() || p.bias || p.blocks || p.dropout > 0;
}

// That divides a group.
int largest_power_of_two(std::int64_t group, int most) {
  int heads = 1;
  while (heads < most && group % (2 * heads) == 0) heads *= 2;
  return heads;
}

bool fills_tiles_better(const Problem& p, std::int64_t heads) {
  return 10 * tiles(heads * p.sq) <= 9 * heads * tiles(p.sq);
}

// Of a tensor with a group's heads behind one another as rows. A head stride of 0 or the like, as
// of heads that are expanded from one, cannot become a row stride.
std::optional<Strides> packed(const Strides& s, std::int64_t group, std::int64_t rows,
                              std::int64_t columns) {
  if (rows > 1 ? s.head != rows * s.row : s.head < columns) return std::nullopt;
  return Strides{.batch = s.batch, .head = group * s.head, .row = rows > 1 ? s.row : s.head};
}

}  // namespace

Problem with_pack_gqa(const Problem& p) {
  const std::int64_t group = p.hq / p.hk;
  if (p.packed() || p.descale_rows > 0 || !p.plain() || group == 1 || has_backward(p) ||
      hides_keys(p) || !fills_tiles_better(p, group))
    return p;
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

int select_pack_gqa(const Problem& p) {
  const int most = std::min(p.d, p.dv) > kMostColumns ? 64 : 16;
  const std::int64_t group = p.hq / p.hk;
  if (heads_stay_apart(p) || has_backward(p)) return 1;
  const auto work_tiles = [&](int heads) { return group / heads * tiles(rows_of(heads) * p.sq); };
  int best = largest_power_of_two(group, most);
  if (best > 1 && !fills_tiles_better(p, best)) best = 1;
  for (int heads = 3; heads <= most; ++heads) {  // powers of two fill boxes, others must be better
    if (group % heads == 0 && 10 * work_tiles(heads) <= 9 * work_tiles(best)) best = heads;
  }
  return best;
}

int pack_gqa_under_window(const Problem& p) {
  const bool window = p.mask.left >= 0 || p.mask.chunk > 0;
  if (!window || heads_stay_apart(p) || p.dtype == DType::e4m3 || select_pack_gqa(p) > 1) return 1;
  return largest_power_of_two(p.hq / p.hk, 16);
}

std::int64_t heads_of_a_tile(const Problem& p) {
  const Problem all = with_pack_gqa(p);
  return p.hq / all.hq * select_pack_gqa(all);
}

Problem priced_with_pack_gqa(const Problem& p) {
  const int heads = select_pack_gqa(p);
  if (heads == 1) return p;
  Problem all = p;
  all.hq = p.hq / heads;
  all.hk = all.hq;
  all.sq = rows_of(heads) * p.sq;
  if (p.mask.left >= 0) all.sk = std::min<std::int64_t>(p.sk, p.sq + p.mask.left);
  if (p.mask.chunk > 0) all.sk = std::min<std::int64_t>(all.sk, p.sq + p.mask.chunk);
  all.mask = kFull;
  return all;
}

std::string rows_of_heads(std::int64_t heads) {
  if (heads == 1) return "";
  return "; rows of a tile are of " + std::to_string(heads) +
         " query heads, which read the same keys";
}

}  // namespace dfa
