#include "plan/schedule.h"

#include <algorithm>
#include <cmath>

#include "plan/list_schedule.h"
#include "plan/prices_backward.h"
#include "plan/steps.h"
#include "spec/flops.h"
#include "spec/limits.h"

namespace dfa {
namespace {

using namespace prices;

// Under a mask work tiles differ, the longest come first, of all heads (select_head_swizzle):
// steps until the last pair ends.
double masked_steps(const Problem& p, const BackwardConfig& c, const SplitQ& dealt, int pairs) {
  ListSchedule schedule(pairs);
  const std::int64_t tiles = tiles_of(p.sq, c.block_q);
  int work = 0;
  for (std::int64_t key = 0; key < p.sk; key += c.cluster_keys()) {
    const std::int64_t seen = tiles - p.mask.query_begin(key, p.sq, p.sk) / c.block_q;
    for (std::int64_t head = 0; head < p.b * p.hk; ++head, ++work) {
      const int parts = work < dealt.end ? dealt.parts : 1;
      const auto steps = static_cast<double>(tiles_of(seen, parts) * (p.hq / p.hk));
      for (int part = 0; part < parts; ++part) {
        schedule.take(steps + (parts == 1 ? kWorkBesides : static_cast<double>(kPartBesides)));
      }
    }
  }
  return schedule.end() + (dealt.parts == 1 ? 0.0 : static_cast<double>(dealt.parts / kPartsAStep));
}

SplitQ masked_split_q(const Problem& p, const BackwardConfig& c, int work_tiles, int pairs) {
  SplitQ best{.first = 0, .end = 0, .parts = 1};
  constexpr int kMostParts = 8;
  if (work_tiles > pairs) return best;
  double least = masked_steps(p, c, best, pairs) * (1 - 1.0 / kShareOfFew);
  const auto heads = static_cast<int>(p.b * p.hk);
  for (int parts = 2; parts <= kMostParts; ++parts) {
    const int most = std::min({work_tiles, kWorkTilesInParts, kPartPlaces / parts});
    for (int end = heads; end <= most; end += heads) {  // all heads' work tiles of so many keys
      const SplitQ tried{.first = 0, .end = end, .parts = parts};
      const double steps = masked_steps(p, c, tried, pairs);
      if (steps >= least) continue;
      best = tried;
      least = steps;
    }
  }
  return best;
}

// What work tiles of a backward walk, q, do and the sums of dq: of a row, and of all of a key
// head's with its keys.
std::int64_t walked_row_bytes(const Problem& p) {
  return bytes_of(p.dtype) * (p.d + p.dv) +
         static_cast<std::int64_t>(sizeof(float)) * gpu_head_dim(p.d);
}
std::int64_t walked_head_bytes(const Problem& p) {
  return walked_row_bytes(p) * (p.hq / p.hk) * p.sq + bytes_of(p.dtype) * (p.d + p.dv) * p.sk;
}

// Pairs of blocks that wait for each other to add to dq.
bool pairs_serialized(const BackwardConfig& c) {
  return c.dq_serialized() && c.cluster > 1 && !c.sm90_is_wide();
}

}  // namespace

int fitting_heads(const Problem& p, const ForwardConfig& c) {
  const std::int64_t bytes = bytes_of(p.dtype) * p.sk * (p.d + p.dv);
  const std::int64_t group = p.hq / p.hk / c.pack_gqa;
  const std::int64_t heads = p.b * p.hq / c.pack_gqa;
  return static_cast<int>(std::min(heads, std::max<std::int64_t>(1, kL2Share / bytes) * group));
}

std::int64_t work_tiles_of(const Problem& p, const BackwardConfig& c) {
  return tiles_of(p.sk, c.cluster_keys()) * p.b * p.hk;
}

SplitQ select_split_q(const Problem& p, const BackwardConfig& c, int sms) {
  const auto work_tiles = static_cast<int>(work_tiles_of(p, c));
  const int pairs = std::max(sms / c.cluster, 1), left = work_tiles % pairs;
  const std::int64_t tiles = tiles_of(p.sq, c.block_q), steps = tiles * (p.hq / p.hk);
  const auto last_round = [&](int parts) {
    const std::int64_t rounds = tiles_of(static_cast<std::int64_t>(left) * parts, pairs);
    return rounds * (tiles_of(steps, parts) + kPartBesides) + parts / kPartsAStep;
  };
  SplitQ best{.first = work_tiles, .end = work_tiles, .parts = 1};
  if (!c.split_q) return best;
  if (!p.mask.is_full()) return masked_split_q(p, c, work_tiles, pairs);
  if (left == 0 || left > kWorkTilesInParts) return best;
  const std::int64_t rounding = c.dq_fused() ? kRoundingSteps : std::int64_t{0};
  std::int64_t least = steps - (work_tiles < pairs ? steps / kShareOfFew : rounding);
  if (c.dq == DqAccumulation::atomic_fused)
    least = std::min(least, steps - work_tiles * steps / pairs / kShareOfAll);
  for (int parts = 2; parts <= tiles && left * parts <= kPartPlaces; ++parts) {
    if (last_round(parts) >= least) continue;
    best = {.first = work_tiles - left, .end = work_tiles, .parts = parts};
    least = last_round(parts);
  }
  return best;
}

int select_head_swizzle(const Problem& p, const BackwardConfig& c) {
  // Few work tiles, all of which begin at once: parts are of the first ones, the longest of all
  // heads.
  if (c.split_q && !p.mask.is_full() && work_tiles_of(p, c) <= kWorkTilesInParts) {
    return static_cast<int>(p.b * p.hk);
  }
  if (c.dq_atomic()) {
    if (!c.dq_fused()) return 1;  // sums need not stay in the L2 until they are rounded
    const std::int64_t of_head = tiles_of(p.sk, c.cluster_keys());
    return static_cast<int>(tiles_of(kPairsAtOnce, of_head));
  }
  const double seen = visible_pairs(p.mask, p.sq, p.sk) / static_cast<double>(p.sk);  // by a key
  const std::int64_t query_heads = p.hq / p.hk;
  const std::int64_t row = walked_row_bytes(p);
  const double walked = std::max(seen * static_cast<double>(row * query_heads), 1.0);
  const auto few =
      static_cast<int>(std::clamp(std::round(kL2Share / walked), 1.0, 1.0 * kSm90HeadsAtOnce));
  if (!pairs_serialized(c) || p.mask.is_full()) return few;
  // Work tiles of later keys are shorter under a mask: they catch up with those whose place is
  // before theirs, the less so the more heads there are in between. So as many heads as the L2 has
  // of all their rows, where these are many, in groups of one size.
  const std::int64_t many = kL2Share / walked_head_bytes(p), heads = p.b * p.hk;
  if (many < 2 * kSm90HeadsAtOnce) return few;
  const std::int64_t groups = std::max<std::int64_t>((heads + many / 2) / many, 1);
  return static_cast<int>((heads + groups - 1) / groups);
}

int select_heads_zeroed_ahead(const Problem& p, const BackwardConfig& c) {
  // Those that alternate next, so that none waits for zeros. Without a mask the blocks of a head
  // are better held together by that wait.
  return c.dq == DqAccumulation::atomic_fused && !p.mask.is_full() ? select_head_swizzle(p, c) : 0;
}

int select_blocks_behind(const BackwardConfig& c) {
  return pairs_serialized(c) ? kPairBlocksBehind : kBlocksBehind;
}

int select_persistent_clusters(const Problem& p, const BackwardConfig& c, int sms) {
  if (!c.persistent) return 0;
  const int taken = select_split_q(p, c, sms).count(static_cast<int>(work_tiles_of(p, c)));
  return std::clamp(sms / c.cluster, 1, taken);
}

std::vector<double> backward_tile_costs(const Problem& p, const BackwardConfig& c) {
  std::vector<double> costs;
  for (std::int64_t key = 0; key < p.sk; key += c.cluster_keys()) {
    const std::int64_t steps = query_steps(p, key, c.cluster_keys(), c.block_q) * (p.hq / p.hk);
    costs.push_back(static_cast<double>(steps) + kWorkBesides);
  }
  return costs;
}

double backward_tile_balance(const std::vector<double>& costs, int heads, int at_once,
                             int tail_heads, int blocks) {
  ListSchedule schedule(blocks);
  for (int first = 0; first < heads;) {
    const int count = first < tail_heads ? at_once : heads - first;
    for (const double cost : costs) {
      for (int head = 0; head < count; ++head) schedule.take(cost);
    }
    first += count;
  }
  return schedule.balance();
}

int select_tail_heads(const Problem& p, const BackwardConfig& c) {
  constexpr int kMostWorkTiles = 1 << 12;
  const int heads = static_cast<int>(p.b * p.hk), at_once = select_head_swizzle(p, c);
  // Where there are other multiprocessors work tiles end as right, not as much together.
  const int plain = heads / at_once * at_once, takers = kUsualMultiprocessors / c.cluster;
  const std::int64_t of_head = tiles_of(p.sk, c.cluster_keys());
  // Of many work tiles what the last ones leave idle is a small part.
  if (p.mask.is_full() || heads * of_head > kMostWorkTiles) return plain;
  const std::vector<double> costs = backward_tile_costs(p, c);
  int best = plain;
  double most = backward_tile_balance(costs, heads, at_once, plain, takers);
  // Two rounds of work tiles are as many as the last heads' need be.
  for (int from = plain; from > 0 && (heads - from) * of_head < 2 * takers;) {
    from -= at_once;
    const double shared = static_cast<double>((heads - from) * walked_head_bytes(p)) / kL2Share;
    const double worth =
        backward_tile_balance(costs, heads, at_once, from, takers) - kSharedHeadsCost * shared;
    if (worth <= most) continue;
    best = from;
    most = worth;
  }
  return best;
}

}  // namespace dfa
