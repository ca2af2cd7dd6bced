#include "plan/select_split_kv.h"

#include <algorithm>

#include "plan/prices_forward.h"
#include "plan/steps.h"
#include "plan/validate_gpu.h"
#include "spec/passes.h"

namespace dfa {
namespace {

// Queries by heads of a key head, up to which a sequence's are few: more are faster as tiles of
// their own, which read keys again but multiply more with each.
constexpr std::int64_t kFewRows = 64;

constexpr int kMostPacked = 16;

// Of a batch-invariant problem. Enough of a long sequence's to fill a card, few to combine; a
// multiple of every tile.
constexpr int kInvariantSplitKeys = 1024;

// Of a sequence. Where nobody says the longest, sq is all of them, and the mean stands for it.
std::int64_t queries_of(const Problem& p) {
  const bool unknown = p.packed() && p.lens_q.empty() && p.sq == p.total_q;
  return unknown ? (p.total_q + p.b - 1) / p.b : p.sq;
}

// In the order to try them. What counts is bytes on their way: two blocks of a multiprocessor with
// as many stages as there is room for.
struct SplitTile {
  int block_k, warps, stages, ctas;
};
constexpr SplitTile kTiles[] = {{128, 4, 3, 2}, {64, 4, 3, 2}, {64, 4, 2, 2}, {32, 2, 3, 2},
                                {32, 2, 2, 2},  {32, 2, 2, 1}, {16, 1, 2, 1}};

constexpr int kLeastRows = 16;

// Above so many bytes of a key, and of a value, a tile of 128 leaves no room for a third stage.
constexpr std::int64_t kLongTileBytes = 128;

// Thread blocks of each head so that those of all heads fill whole rounds of a card, the fewest
// that do.
int splits_for(std::int64_t heads, int at_once) {
  constexpr int kMostRounds = 4;
  double best_share = 0;
  int best = 1;
  for (int rounds = 1; rounds <= kMostRounds; ++rounds) {
    const std::int64_t splits = rounds * at_once / heads;
    const double share = static_cast<double>(splits * heads) / (rounds * at_once);
    if (share > best_share + 0.05) {
      best_share = share;
      best = static_cast<int>(splits);
    }
  }
  return best;
}

// Heads of a key head that are rows of a tile: all, or the largest part of them there is room for.
int packed_heads(const Problem& p) {
  const std::int64_t group = p.hq / p.hk;
  if (p.alibi || p.bias) return 1;
  for (int heads = kMostPacked; heads > 1; --heads) {
    if (group % heads == 0) return heads;
  }
  return 1;
}

// Rows of a tile: the more, the fewer times keys are read. Batches of every kind have the same.
int tile_rows(const Problem& p) {
  const ForwardConfig heads{.pack_gqa = packed_heads(p)};
  return !p.batch_invariant && queries_of(p) * heads.query_rows() > kLeastRows ? 32 : kLeastRows;
}

ForwardConfig config_of(const Problem& p, const SplitTile& t, int rows, const Limits& limits) {
  ForwardConfig c{.target = Target::cuda_sm80,
                  .element = p.dtype,
                  .head_dim = portable_head_dim(p, p.d),
                  .value_dim = portable_head_dim(p, p.dv),
                  .block_q = rows,
                  .block_k = t.block_k,
                  .warps = t.warps,
                  .stages = t.stages,
                  .ctas = t.ctas,
                  .pack_gqa = packed_heads(p),
                  .varlen = p.packed(),
                  .paged = p.paged(),
                  .split_kv = true,
                  .kv_e4m3 = p.kv.has_value()};
  c.num_splits = splits_for(p.hq / c.pack_gqa, limits.sm_count * t.ctas);
  if (p.batch_invariant) c.split_keys = kInvariantSplitKeys;
  set_logits(c, p);
  return c;
}

// Few enough for what splits keys to be worth it.
bool are_few(const Problem& p) {
  const ForwardConfig heads{.pack_gqa = packed_heads(p)};
  return queries_of(p) * heads.query_rows() <= kFewRows;
}

bool has_many_keys(const Problem& p) {
  using namespace prices;
  const std::int64_t bytes = p.b * p.hk * p.sk * (p.d + p.dv) * bytes_of(p.dtype);
  return p.sq * (p.hq / p.hk) <= kDenseRows && p.sk >= kDenseKeys && bytes >= kDenseBytes;
}

bool takes_split_kv(const Problem& p) { return !has_backward(p) && bytes_of(p.dtype) == 2; }

// Up to here rows of a tile are of several heads, which read the same keys.
constexpr std::int64_t kFewSlicedQueries = 16;

// Of a tile of cuda_sm90 with heads above kMostColumns: of the heads of a key head as many as take
// the fewest tiles. Of those the most where some sequences may have fewer queries than others, and
// of prompts the fewest, as lists are by tiles of queries.
int sliced_heads(const Problem& p) {
  const std::int64_t group = p.hq / p.hk, queries = queries_of(p);
  const auto tiles = [&](int heads) {
    const int rows = ForwardConfig{.pack_gqa = heads}.query_rows();
    return group / heads * tiles_of(queries, kGroupRows / rows);
  };
  int best = 1;
  for (int heads = 2; heads <= kGroupRows; ++heads) {
    if (group % heads != 0) continue;
    const std::int64_t fewer = tiles(best) - tiles(heads);
    if (fewer > 0 || (fewer == 0 && queries <= kFewSlicedQueries)) best = heads;
  }
  return best;
}

}  // namespace

bool takes_sliced_split_kv(const Problem& p) {
  return takes_split_kv(p) && p.packed() && std::min(p.d, p.dv) > kMostColumns &&
         (p.paged() || queries_of(p) <= kFewSlicedQueries);
}

ForwardConfig with_sliced_split_kv(ForwardConfig c, const Problem& p, const Limits& limits) {
  c.split_kv = true;
  c.pack_gqa = sliced_heads(p);
  c.num_splits = splits_for(p.hq / c.pack_gqa, limits.sm_count);
  if (p.batch_invariant) c.split_keys = kInvariantSplitKeys;
  return c;
}

bool has_few_queries(const Problem& p) { return takes_split_kv(p) && are_few(p); }

bool split_kv_is_first(const Problem& p) {
  if (!p.packed()) return has_few_queries(p) && has_many_keys(p);
  return has_few_queries(p) || (p.paged() && p.batch_invariant);
}

std::vector<ForwardConfig> split_kv_candidates(const Problem& p, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  if (limits.highest == Target::cuda_sm75 || !takes_split_kv(p)) return legal;
  if (!p.packed() && !are_few(p)) return legal;
  const auto add = [&](int rows) {
    for (const SplitTile& tile : kTiles) {
      const std::int64_t bytes = bytes_of(p.kv_dtype()) * std::max(p.d, p.dv);
      if (tile.block_k > 64 && bytes > kLongTileBytes) continue;
      const ForwardConfig config = config_of(p, tile, rows, limits);
      if (validate_portable(config, p, limits)) legal.push_back(config);
    }
  };
  const int rows = tile_rows(p);
  add(rows);
  // Wide heads have no registers for more rows, and there is no other kernel for a cache in e4m3.
  if (p.kv && rows > kLeastRows) add(kLeastRows);
  return legal;
}

}  // namespace dfa
