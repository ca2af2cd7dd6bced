#include "kernels/work_balance.h"

#include <algorithm>

#include "kernels/launch_parts.h"
#include "kernels/softmax/tile_mask.h"
#include "spec/list_schedule.h"
#include "spec/sm90_legality.h"

namespace dfa {

using namespace launch_parts;

std::vector<double> work_costs(const Problem& p, const BackwardConfig& c) {
  constexpr double kPerWork = 1.5;  // its keys, dq of its last tile, its gradients: in steps (0019)
  const TileMask mask = TileMask::of(kernel_args(p));
  std::vector<double> costs;
  for (int key = 0; key < p.sk; key += c.turn_keys()) {
    const TileRange tiles = query_tiles(mask, key, c.turn_keys(), c.block_q);
    costs.push_back(static_cast<double>((tiles.end - tiles.begin) * (p.hq / p.hk)) + kPerWork);
  }
  return costs;
}

double work_balance(const std::vector<double>& costs, int heads, int at_once, int last_heads,
                    int blocks) {
  ListSchedule schedule(blocks);
  for (int first = 0; first < heads;) {
    const int count = first < last_heads ? at_once : heads - first;
    for (const double cost : costs) {
      for (int head = 0; head < count; ++head) schedule.take(cost);
    }
    first += count;
  }
  return schedule.balance();
}

int last_heads(const Problem& p, const BackwardConfig& c) {
  constexpr int kMostWorks = 1 << 12;
  // What heads that alternate cost, as they share the L2, for each kL2Share of theirs: at 4096 keys
  // and d 128 eight heads' 50 MB in place of four's took up to 0.5 % of the speed and work per
  // joule, 12 with three query heads each, 175 MB, 4 %, where on paper they gain (0019).
  constexpr double kWorth = 0.005;
  const int heads = static_cast<int>(p.b * p.hk), at_once = heads_at_once(p, c);
  // Where there are other multiprocessors works end as right, not as much together.
  const int plain = heads / at_once * at_once, takers = kUsualMultiprocessors / c.cluster;
  const std::int64_t of_head = tiles(p.sk, c.turn_keys());
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
