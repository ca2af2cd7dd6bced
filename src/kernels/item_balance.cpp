#include "kernels/item_balance.h"

#include <algorithm>
#include <numeric>

#include "kernels/schedule/item_walk.h"
#include "kernels/softmax/tile_mask.h"

namespace dfa {

std::vector<double> item_costs(const Problem& p, const ForwardConfig& c) {
  constexpr double kPerItem = 1.5;  // first scores, last product and store, in steps (0015)
  const TileMask mask = TileMask::of(kernel_args(p));
  std::vector<double> costs;
  for (int query = 0; query < p.sq; query += c.item_rows()) {
    const TileRange tiles = key_tiles(mask, query, c.item_rows(), c.block_k);
    costs.push_back(tiles.end - tiles.begin + kPerItem);
  }
  return costs;
}

double balance(const Items& items, const std::vector<double>& costs, int blocks) {
  double most = 0, all = 0;
  for (int block = 0; block < blocks; ++block) {
    double work = 0;
    for (ItemWalk walk(items, block, blocks); walk.more(); walk.next()) {
      work += costs[static_cast<std::size_t>(walk.tile())];
    }
    most = std::max(most, work);
    all += work;
  }
  return all / blocks / most;
}

Items balanced_items(const Problem& p, const ForwardConfig& c, int blocks) {
  constexpr double kWorth = 0.02;
  constexpr int kMostItems = 1 << 14, kMostTried = 16;
  Items best = forward_items(p, c, blocks);
  // Of many items what the last section leaves idle is a small part.
  if (best.late_first == 0 || 1LL * best.heads * best.tiles > kMostItems) return best;
  blocks /= c.cluster;
  const std::vector<double> costs = item_costs(p, c);
  double most = balance(best, costs, blocks) + kWorth;
  const int fitting = best.section, least = std::max(1, fitting / 2);
  const int step = std::max(1, (fitting - least) / kMostTried);
  for (int section = fitting - step; section >= least; section -= step) {
    Items tried = best;
    tried.section = section;
    const double busy = balance(tried, costs, blocks);
    if (busy <= most) continue;
    most = busy;
    best = tried;
  }
  return best;
}

}  // namespace dfa
