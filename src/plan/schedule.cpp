#include "plan/schedule.h"

#include <algorithm>
#include <cmath>

#include "plan/list_schedule.h"
#include "plan/steps.h"
#include "spec/flops.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// In steps of a pair. Beside its own a part takes its keys and leaves its sums, and who ends last
// has those of all.
constexpr std::int64_t kBesides = 4, kPartsAStep = 2;
// Where dq is rounded in the same grid, that of the last heads no longer is beside the last works:
// so many steps, and of sums as they come a share of all. At d 128 10 fewer steps of 1000 (4096
// keys) were 0.99 of the speed and 0.98 of the work per joule, 76 of 4000 (16384) 0.97 to 1.01 and
// 1.00 to 1.01, at d 96 28 of 1300 0.99 to 1.00 and 1.00 to 1.015.
constexpr std::int64_t kRounding = 16, kShareOfAll = 20;
// Where works are fewer than pairs: so large a share of their steps. 16 works of 16 steps at d 128
// in four 1.29 of the speed and 0.94 of the work per joule, 8 in eight 1.39 and 1.07, 40 of 32 in
// three (two rounds, one step fewer) 1.06 and 0.85; d 96 24 of 32 in two 1.35 and 1.05, d 64 32 of
// 16 in two 1.33 and 1.04, 16 of 32 in four 1.41 and 1.06.
constexpr std::int64_t kShareOfFew = 10;

// Under a mask works differ, the longest come first, of all heads (select_heads_at_once): steps
// until the last pair ends.
double masked_steps(const Problem& p, const BackwardConfig& c, const WorkParts& dealt, int pairs) {
  constexpr double kBesidesWhole = 1.5;
  ListSchedule schedule(pairs);
  const std::int64_t tiles = tiles_of(p.sq, c.block_q);
  int work = 0;
  for (std::int64_t key = 0; key < p.sk; key += c.turn_keys()) {
    const std::int64_t seen = tiles - p.mask.query_begin(key, p.sq, p.sk) / c.block_q;
    for (std::int64_t head = 0; head < p.b * p.hk; ++head, ++work) {
      const int parts = work < dealt.end ? dealt.parts : 1;
      const auto steps = static_cast<double>(tiles_of(seen, parts) * (p.hq / p.hk));
      for (int part = 0; part < parts; ++part) {
        schedule.take(steps + (parts == 1 ? kBesidesWhole : kBesides));
      }
    }
  }
  return schedule.end() + (dealt.parts == 1 ? 0 : dealt.parts / kPartsAStep);
}

WorkParts masked_work_parts(const Problem& p, const BackwardConfig& c, int works, int pairs) {
  WorkParts best{.first = 0, .end = 0, .parts = 1};
  constexpr int kMostParts = 8;
  if (works > pairs) return best;
  double least = masked_steps(p, c, best, pairs) * (1 - 1.0 / kShareOfFew);
  const auto heads = static_cast<int>(p.b * p.hk);
  for (int parts = 2; parts <= kMostParts; ++parts) {
    const int most = std::min({works, kWorksInParts, kPartPlaces / parts});
    for (int end = heads; end <= most; end += heads) {  // all heads' works of so many keys
      const WorkParts tried{.first = 0, .end = end, .parts = parts};
      const double steps = masked_steps(p, c, tried, pairs);
      if (steps >= least) continue;
      best = tried;
      least = steps;
    }
  }
  return best;
}

// What works of a backward walk, q, do and the sums of dq: of a row, and of all of a key head's
// with its keys.
std::int64_t walked_row_bytes(const Problem& p) {
  return bytes_of(p.dtype) * (p.d + p.dv) +
         static_cast<std::int64_t>(sizeof(float)) * gpu_head_dim(p.d);
}
std::int64_t walked_head_bytes(const Problem& p) {
  return walked_row_bytes(p) * (p.hq / p.hk) * p.sq + bytes_of(p.dtype) * (p.d + p.dv) * p.sk;
}

// Pairs of blocks that wait for each other's turns to add to dq.
bool pairs_in_turn(const BackwardConfig& c) {
  return c.dq_serialized() && c.cluster > 1 && !c.sm90_is_wide();
}

}  // namespace

int fitting_heads(const Problem& p, const ForwardConfig& c) {
  const std::int64_t bytes = bytes_of(p.dtype) * p.sk * (p.d + p.dv);
  const std::int64_t group = p.hq / p.hk / c.pack_gqa;
  const std::int64_t heads = p.b * p.hq / c.pack_gqa;
  return static_cast<int>(std::min(heads, std::max<std::int64_t>(1, kL2Share / bytes) * group));
}

std::int64_t works_of(const Problem& p, const BackwardConfig& c) {
  return tiles_of(p.sk, c.turn_keys()) * p.b * p.hk;
}

WorkParts select_split_q(const Problem& p, const BackwardConfig& c, int sms) {
  const auto works = static_cast<int>(works_of(p, c));
  const int pairs = std::max(sms / c.cluster, 1), left = works % pairs;
  const std::int64_t tiles = tiles_of(p.sq, c.block_q), steps = tiles * (p.hq / p.hk);
  const auto last_round = [&](int parts) {
    const std::int64_t rounds = tiles_of(static_cast<std::int64_t>(left) * parts, pairs);
    return rounds * (tiles_of(steps, parts) + kBesides) + parts / kPartsAStep;
  };
  WorkParts best{.first = works, .end = works, .parts = 1};
  if (!c.split_q) return best;
  if (!p.mask.is_full()) return masked_work_parts(p, c, works, pairs);
  if (left == 0 || left > kWorksInParts) return best;
  std::int64_t least = steps - (works < pairs ? steps / kShareOfFew : c.dq_fused() ? kRounding : 0);
  if (c.dq == DqAccumulation::atomic_fused)
    least = std::min(least, steps - works * steps / pairs / kShareOfAll);
  for (int parts = 2; parts <= tiles && left * parts <= kPartPlaces; ++parts) {
    if (last_round(parts) >= least) continue;
    best = {.first = works - left, .end = works, .parts = parts};
    least = last_round(parts);
  }
  return best;
}

int select_heads_at_once(const Problem& p, const BackwardConfig& c) {
  // Few works, all of which begin at once: parts are of the first ones, the longest of all heads.
  if (c.split_q && !p.mask.is_full() && works_of(p, c) <= kWorksInParts) {
    return static_cast<int>(p.b * p.hk);
  }
  if (c.dq_atomic()) {
    if (!c.dq_fused()) return 1;  // sums need not stay in the L2 until they are rounded
    // None waits for a turn: works for the pairs of a card. Twice as many have, at 4096 keys, 0.985
    // of the speed and work per joule at d 128, under a causal mask 1.00 and 1.00, at d 96 1.00 and
    // 0.99, at d 256 and 1024 keys 0.98 and 0.98.
    constexpr std::int64_t kPairs = 64;
    const std::int64_t of_head = tiles_of(p.sk, c.turn_keys());
    return static_cast<int>((kPairs + of_head - 1) / of_head);
  }
  const double seen = visible_pairs(p.mask, p.sq, p.sk) / static_cast<double>(p.sk);  // by a key
  const std::int64_t query_heads = p.hq / p.hk;
  const std::int64_t row = walked_row_bytes(p);
  const double walked = std::max(seen * static_cast<double>(row * query_heads), 1.0);
  const auto few =
      static_cast<int>(std::clamp(std::round(kL2Share / walked), 1.0, 1.0 * kSm90HeadsAtOnce));
  if (!pairs_in_turn(c) || p.mask.is_full()) return few;
  // Works of later keys are shorter under a mask: they catch up with those whose turn is before
  // theirs, the less so the more heads there are in between; on paper, where the last heads' long
  // works begin late, some pairs have nothing to do at the end, too. So as many heads as the L2 has
  // of all their rows, where these are many, in groups of one size. Of 8 heads' speed and work per
  // joule at 1024 keys d 64 1.055 and 1.01, d 96 1.02 and 1.00, at 512 d 64 1.065 and 1.03 (0019).
  const std::int64_t many = kL2Share / walked_head_bytes(p), heads = p.b * p.hk;
  if (many < 2 * kSm90HeadsAtOnce) return few;
  const std::int64_t groups = std::max<std::int64_t>((heads + many / 2) / many, 1);
  return static_cast<int>((heads + groups - 1) / groups);
}

int select_heads_zeroed_ahead(const Problem& p, const BackwardConfig& c) {
  // Those that alternate next, so that none waits for zeros. Without a mask the blocks of a head
  // are better held together by that wait: 4096 keys, d 128 0.98 of the speed, d 96 0.99, d 192
  // 0.95; under a causal one d 128 1.03 and 1.02 of the work per joule (0019).
  return c.dq == DqAccumulation::atomic_fused && !p.mask.is_full() ? select_heads_at_once(p, c) : 0;
}

int select_blocks_behind(const BackwardConfig& c) {
  // A card's blocks run at once, and a half more: what is rounded has mostly been added up. By
  // pairs in turn four times as many, measured: at 1024 keys d 128 1.035 of the speed and work per
  // joule, under a causal mask 1.095 and 1.055, at 4096 keys under window(127,0) 1.125 and 1.07,
  // else 1.00 to 1.01 (0019).
  return pairs_in_turn(c) ? 560 : 192;
}

int staying_clusters(const Problem& p, const BackwardConfig& c, int sms) {
  if (!c.persistent) return 0;
  const int taken = select_split_q(p, c, sms).count(static_cast<int>(works_of(p, c)));
  return std::clamp(sms / c.cluster, 1, taken);
}

std::vector<double> work_costs(const Problem& p, const BackwardConfig& c) {
  constexpr double kPerWork = 1.5;  // its keys, dq of its last tile, its gradients: in steps (0019)
  std::vector<double> costs;
  for (std::int64_t key = 0; key < p.sk; key += c.turn_keys()) {
    const std::int64_t steps = query_steps(p, key, c.turn_keys(), c.block_q) * (p.hq / p.hk);
    costs.push_back(static_cast<double>(steps) + kPerWork);
  }
  return costs;
}

double work_balance(const std::vector<double>& costs, int heads, int at_once, int tail_heads,
                    int blocks) {
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
  constexpr int kMostWorks = 1 << 12;
  // What heads that alternate cost, as they share the L2, for each kL2Share of theirs: at 4096 keys
  // and d 128 eight heads' 50 MB in place of four's took up to 0.5 % of the speed and work per
  // joule, 12 with three query heads each, 175 MB, 4 %, where on paper they gain (0019).
  constexpr double kWorth = 0.005;
  const int heads = static_cast<int>(p.b * p.hk), at_once = select_heads_at_once(p, c);
  // Where there are other multiprocessors works end as right, not as much together.
  const int plain = heads / at_once * at_once, takers = kUsualMultiprocessors / c.cluster;
  const std::int64_t of_head = tiles_of(p.sk, c.turn_keys());
  // Of many works what the last ones leave idle is a small part.
  if (p.mask.is_full() || heads * of_head > kMostWorks) return plain;
  const std::vector<double> costs = work_costs(p, c);
  int best = plain;
  double most = work_balance(costs, heads, at_once, plain, takers);
  // Two rounds of works are as many as the last heads' need be.
  for (int from = plain; from > 0 && (heads - from) * of_head < 2 * takers;) {
    from -= at_once;
    const double shared = static_cast<double>((heads - from) * walked_head_bytes(p)) / kL2Share;
    const double worth = work_balance(costs, heads, at_once, from, takers) - kWorth * shared;
    if (worth <= most) continue;
    best = from;
    most = worth;
  }
  return best;
}

}  // namespace dfa
