#include "kernels/tile_balance.h"

#include <algorithm>
#include <numeric>

#include "kernels/schedule/tile_scheduler.h"
#include "plan/prices_forward.h"
#include "plan/schedule.h"
#include "plan/steps.h"

namespace dfa {

std::vector<double> forward_tile_costs(const Problem& p, const ForwardConfig& c) {
  std::vector<double> costs;
  for (std::int64_t query = 0; query < p.sq; query += c.work_tile_queries()) {
    const std::int64_t steps = key_steps(p, query, c.work_tile_queries(), c.block_k);
    costs.push_back(static_cast<double>(steps) + prices::kTileBesides);
  }
  return costs;
}

double balance(const TileGrid& tile_grid, const std::vector<double>& costs, int blocks) {
  double most = 0, all = 0;
  for (int block = 0; block < blocks; ++block) {
    double work = 0;
    for (PersistentTileScheduler walk(tile_grid, block, blocks); walk.more(); walk.next()) {
      work += costs[static_cast<std::size_t>(walk.tile())];
    }
    most = std::max(most, work);
    all += work;
  }
  return all / blocks / most;
}

namespace {

// Looks for work tiles that keep a grid busier.
struct Search {
  const std::vector<double>& costs;
  int blocks;
  TileGrid best;
  double busy;

  void consider(const TileGrid& tile_grid) {
    const double tried = balance(tile_grid, costs, blocks);
    if (tried <= busy) return;
    best = tile_grid;
    busy = tried;
  }

  // With up to `most` values between the two of one field, the largest first.
  void vary(int TileGrid::*field, int least, int largest, int most) {
    const int step = std::max(1, (largest - least) / most);
    TileGrid tried = best;
    for (tried.*field = largest; tried.*field >= least; tried.*field -= step) consider(tried);
  }
};

}  // namespace

TileGrid balanced_tile_grid(const Problem& p, const ForwardConfig& c, int blocks) {
  constexpr double kWorth = prices::kSectionWorth;
  constexpr int kMostWorkTiles = 1 << 14, kMostSections = 16, kMostWalked = 1 << 18;
  const TileGrid plain = forward_tile_grid(p, c, blocks);
  // Of many work tiles what the last section leaves idle is a small part.
  const std::int64_t work_tiles = std::int64_t{plain.heads} * plain.tiles;
  if (plain.late_first == 0 || work_tiles > kMostWorkTiles) return plain;
  blocks /= c.cluster;
  const std::vector<double> costs = forward_tile_costs(p, c);
  Search search{costs, blocks, plain, balance(plain, costs, blocks)};
  search.vary(&TileGrid::shift, 1, blocks - 1,
              std::max(1, kMostWalked / static_cast<int>(work_tiles)));
  // Rounds of short heads are whole: two at once is what there is to try.
  const int fitting = fitting_heads(p, c);
  const bool in_rounds = plain.section < fitting;
  const double worth = in_rounds ? 2 * kWorth : kWorth;
  const int least = in_rounds ? 2 * plain.section : std::max(1, plain.section / 2);
  const int largest = in_rounds ? std::min(least, fitting)
                                : std::min(plain.heads, plain.section + plain.section / 4);
  Search other{costs, blocks, plain, search.busy + worth};
  other.vary(&TileGrid::section, least, largest, kMostSections);
  return other.busy > search.busy + worth ? other.best : search.best;
}

}  // namespace dfa
