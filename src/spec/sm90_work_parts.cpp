#include <algorithm>

#include "spec/list_schedule.h"
#include "spec/sm90_legality.h"

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

std::int64_t over(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

// Under a mask works differ, the longest come first, of all heads (heads_at_once() in
// kernels/launch.cpp): steps until the last pair ends.
double masked_steps(const Problem& p, const BackwardConfig& c, const WorkParts& dealt, int pairs) {
  constexpr double kBesidesWhole = 1.5;
  ListSchedule schedule(pairs);
  const std::int64_t tiles = over(p.sq, c.block_q);
  int work = 0;
  for (std::int64_t key = 0; key < p.sk; key += c.turn_keys()) {
    const std::int64_t seen = tiles - p.mask.query_begin(key, p.sq, p.sk) / c.block_q;
    for (std::int64_t head = 0; head < p.b * p.hk; ++head, ++work) {
      const int parts = work < dealt.end ? dealt.parts : 1;
      const auto steps = static_cast<double>(over(seen, parts) * (p.hq / p.hk));
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

}  // namespace

std::int64_t works_of(const Problem& p, const BackwardConfig& c) {
  return over(p.sk, c.turn_keys()) * p.b * p.hk;
}

WorkParts work_parts(const Problem& p, const BackwardConfig& c, int sms) {
  const auto works = static_cast<int>(works_of(p, c));
  const int pairs = std::max(sms / c.cluster, 1), left = works % pairs;
  const std::int64_t tiles = over(p.sq, c.block_q), steps = tiles * (p.hq / p.hk);
  const auto last_round = [&](int parts) {
    const std::int64_t rounds = over(static_cast<std::int64_t>(left) * parts, pairs);
    return rounds * (over(steps, parts) + kBesides) + parts / kPartsAStep;
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

}  // namespace dfa
