#include "plan/select_split_kv.h"

#include <algorithm>

#include "plan/prices_forward.h"
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

// Above this head dim a tile of 128 keys leaves no room for a third stage.
constexpr std::int64_t kLongTileDim = 64;

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

ForwardConfig config_of(const Problem& p, const SplitTile& t, const Limits& limits) {
  ForwardConfig c{.target = Target::cuda_sm80,
                  .element = p.dtype,
                  .head_dim = gpu_head_dim(p.d),
                  .value_dim = gpu_head_dim(p.dv),
                  .block_q = 16,
                  .block_k = t.block_k,
                  .warps = t.warps,
                  .stages = t.stages,
                  .ctas = t.ctas,
                  .pack_gqa = packed_heads(p),
                  .varlen = p.packed(),
                  .paged = p.paged(),
                  .split_kv = true};
  c.num_splits = splits_for(p.hq / c.pack_gqa, limits.sm_count * t.ctas);
  if (p.batch_invariant) {
    c.split_keys = kInvariantSplitKeys;
  } else if (queries_of(p) * c.query_rows() > 16) {
    c.block_q = 32;
  }
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

}  // namespace

bool has_few_queries(const Problem& p) { return takes_split_kv(p) && are_few(p); }

bool split_kv_is_first(const Problem& p) {
  if (!p.packed()) return has_few_queries(p) && has_many_keys(p);
  return has_few_queries(p) || (p.paged() && p.batch_invariant);
}

std::vector<ForwardConfig> split_kv_candidates(const Problem& p, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  if (limits.highest == Target::cuda_sm75 || !takes_split_kv(p)) return legal;
  if (!p.packed() && !are_few(p)) return legal;
  for (const SplitTile& tile : kTiles) {
    if (tile.block_k > 64 && std::max(p.d, p.dv) > kLongTileDim) continue;
    const ForwardConfig config = config_of(p, tile, limits);
    if (validate_portable(config, p, limits)) legal.push_back(config);
  }
  return legal;
}

}  // namespace dfa
