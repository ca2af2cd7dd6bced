#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "plan/pack_gqa.h"
#include "plan/prices_forward.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/flops.h"
#include "spec/lengths.h"

namespace dfa {
namespace {

// Heads up to here would be padded to twice their size and more: portable kernels run them.
constexpr int kPortableDim = 32;

// What the multiprocessors take together at the power limit, of an item each and on top of that of
// every step along the keys.
struct Price {
  double item_us, step_us;
};

// Without a mask and with one, solved by benchmarks/tile_prices from the joules of the tile's rows
// in results/tables/hopper_forward_h200.json and from what it took beside another tile in the same
// visit. Of d 192 and fp16 there is one row or two a tile, of before launches overlapped; what is
// not told by them is taken from a tile like it, by that tool's ITEMS_LIKE and BESIDE, as that was
// then.
struct MeasuredTile {
  DType element;
  int head_dim;
  Price full, masked;
  Sm90Tile tile;
};

constexpr MeasuredTile kMeasured[] = {
    {DType::bf16, 64, {2.28, 0.904}, {1.87, 0.918}, {256, 64, 4, 2, false}},
    {DType::bf16, 64, {1.46, 1.044}, {1.46, 1.107}, {128, 128, 3, 2, true}},
    {DType::bf16, 96, {3.86, 0.883}, {2.93, 0.909}, {192, 64, 3, 2, false, 1, 96}},
    {DType::bf16, 96, {2.61, 1.274}, {2.19, 1.491}, {128, 128, 2, 2, true}},
    {DType::bf16, 128, {3.95, 1.335}, {3.71, 1.367}, {192, 80, 2, 2, false}},
    {DType::bf16, 128, {2.61, 1.484}, {2.98, 1.573}, {128, 128, 2, 2, true}},
    {DType::bf16, 128, {2.65, 0.745}, {2.53, 0.792}, {128, 64, 4, 2, false, 1, 128}},
    {DType::bf16, 128, {3.92, 1.296}, {5.21, 1.301}, {192, 80, 2, 2, false, 2}},
    {DType::bf16, 192, {3.87, 1.066}, {4.21, 1.155}, {128, 64, 3, 1, false, 1, 96}},
    {DType::bf16, 192, {4.18, 1.054}, {3.58, 1.096}, {128, 64, 3, 1, false, 2, 96}},
    {DType::bf16, 256, {4.53, 1.42}, {5.12, 1.458}, {128, 64, 2, 1, false, 1, 96}},
    {DType::bf16, 256, {4.99, 1.394}, {4.34, 1.401}, {128, 64, 2, 1, false, 2, 96}},
    {DType::fp16, 64, {2.53, 1.041}, {2.09, 1.074}, {256, 64, 4, 2, false}},
    {DType::fp16, 64, {1.58, 1.056}, {1.58, 1.113}, {128, 128, 3, 2, true}},
    {DType::fp16, 96, {4.01, 1.059}, {3.11, 1.09}, {192, 64, 3, 2, false}},
    {DType::fp16, 96, {2.72, 1.484}, {2.4, 1.718}, {128, 128, 2, 2, true}},
    {DType::fp16, 128, {4.58, 1.465}, {3.98, 1.474}, {192, 80, 2, 2, false}},
    {DType::fp16, 128, {2.89, 1.643}, {3.24, 1.698}, {128, 128, 2, 2, true}},
    {DType::fp16, 128, {2.94, 0.876}, {2.73, 0.907}, {128, 64, 4, 2, false, 1, 128}},
    {DType::fp16, 128, {3.74, 1.45}, {5.73, 1.458}, {192, 80, 2, 2, false, 2}},
    {DType::fp16, 192, {3.87, 1.179}, {4.21, 1.21}, {128, 64, 3, 1, false, 1, 64}},
    {DType::fp16, 192, {4.18, 1.163}, {3.58, 1.157}, {128, 64, 3, 1, false, 2, 64}},
    {DType::fp16, 256, {5.16, 1.522}, {5.61, 1.567}, {128, 64, 2, 1, false, 1, 64}},
    {DType::fp16, 256, {5.57, 1.485}, {4.77, 1.496}, {128, 64, 2, 1, false, 2, 64}},
};

// What else there is, in the order to try it: the largest that fit were the fastest.
constexpr Sm90Tile kTiles[] = {
    {192, 128, 3, 2, false}, {128, 128, 3, 2, true},  {128, 128, 2, 2, true},
    {128, 128, 2, 1, false}, {128, 112, 2, 1, false}, {128, 80, 2, 1, false},
    {128, 176, 2, 1, true},  {128, 64, 2, 1, false},  {64, 128, 2, 2, false},
    {64, 80, 2, 1, false},   {256, 64, 4, 2, false},  {192, 80, 2, 2, false},
    {192, 64, 3, 2, false},
};

// Larger items are to promise this much less, as bursts lose by them: by pairs 1 to 5 %, and up to
// 2048 keys no joules were gained either; by 192 queries 2 % at d 128, causal, 4096.
double margin(const Sm90Tile& tile, const Problem& p) {
  constexpr std::int64_t kShort = 2048;
  if (tile.cluster > 1) return p.sk <= kShort ? 1.03 : 1.01;
  return tile.block_q > 128 ? 1.005 : 1;
}

// Steps along the keys of all items of one head, of `rows` queries each.
std::int64_t steps_of_head(const Problem& p, int rows, int block_k) {
  std::int64_t steps = 0;
  for (std::int64_t first = 0; first < p.sq; first += rows) {
    const std::int64_t last = std::min(first + rows, p.sq) - 1;
    const std::int64_t begin = p.mask.key_begin(first, p.sq, p.sk);
    const std::int64_t end = p.mask.key_end(last, p.sq, p.sk);
    if (end > begin) steps += (end + block_k - 1) / block_k - begin / block_k;
  }
  return steps;
}

// A problem's items by a tile: what there is to do, and what it takes.
struct Items {
  double count, of_head, at_once, steps;  // steps of an item, on average
  double rows;                            // of an item
  bool masked;
  Price price;

  Items(const Problem& p, const MeasuredTile& m, int sm_count)
      : at_once(std::max(1, sm_count / m.tile.cluster)), masked(hides_keys(p)) {
    const int most = m.tile.cluster * m.tile.block_q;
    of_head = static_cast<double>((p.sq + most - 1) / most);
    count = static_cast<double>(p.b * p.hq) * of_head;
    steps = static_cast<double>(steps_of_head(p, most, m.tile.block_k)) / of_head;
    rows = static_cast<double>(std::min<std::int64_t>(most, p.sq));
    price = masked ? m.masked : m.full;
  }
  double item_us() const { return price.item_us + steps * price.step_us; }
};

// The rounds that items come in, times what they take.
double predicted_us(const Problem& p, const MeasuredTile& m, int sm_count) {
  const Items items(p, m, sm_count);
  // Under a mask the items differ, and the rounds even out.
  const double rounds = items.masked ? std::max(1., items.count / items.at_once)
                                     : std::ceil(items.count / items.at_once);
  // A block without queries is of no use.
  const int blocks = p.sq <= m.tile.block_q ? m.tile.cluster : 1;
  return blocks * rounds * items.item_us();
}

// Of items that leave multiprocessors idle a call takes less than its joules at 700 W would: the
// clock is high, and what a step waits for is memory. As measured with one query (0015,
// "Split-KV"): a step of few blocks takes 0.64 of its price, of 64 blocks 0.65 or 0.8 by the visit,
// all together what HBM brings.
double unlimited_us(const Problem& p, const Items& items, double blocks, double us) {
  constexpr double kBytesPerUs = 4.0e6;
  const double pace = std::clamp(0.28 + 0.93 * blocks / items.at_once, 0.64, 1.);
  const double bytes = static_cast<double>(bytes_of(p.dtype) * p.b * p.hk * p.sk * (p.d + p.dv));
  const double busy = pace * us, read = bytes / kBytesPerUs;
  return std::max(busy, read) + 0.1 * std::min(busy, read);
}

// What the second kernel takes that joins so many pieces of an item, and what pieces of `rows`
// leave on their way to memory and back: with two beginnings for one, what the measured last rounds
// of d 256 lack of the prediction, some 45 us of 115 pieces of 256 rows.
double joined_us(const Problem& p, double pieces_of_item, double pieces, double rows) {
  constexpr double kLaunchUs = 3, kPieceUs = 0.2, kBytesPerUs = 2e6;
  return kLaunchUs + kPieceUs * pieces_of_item +
         2 * sizeof(float) * pieces * rows * static_cast<double>(p.dv) / kBytesPerUs;
}

// The last items in shares of their keys, and what a call takes then of what it takes without;
// {0, 1} where it is not worth it. Few items are cut into 2, 4, 8, … pieces each, as many as pay
// and as there are blocks for, those behind whole rounds into shares for all.
struct Shares {
  int count;
  double time;
};
Shares worthwhile_shares(const Problem& p, const MeasuredTile& m, int sm_count) {
  // Last rounds as measured at d 256: predicted 0.973, 0.98 and 0.98 of the time and the joules
  // came (32768 keys), predicted 0.984, 0.99 and 1.01 (16384).
  constexpr double kWorth = 0.95, kLastRoundWorth = 0.975;
  constexpr Shares kNone{0, 1};
  const Items items(p, m, sm_count);
  if (m.tile.block_q > kMostSharedQueries || (items.masked && items.of_head > 1)) return kNone;
  const double all = items.at_once;
  if (items.count > all) {
    const double left = items.count - std::floor((items.count - 1) / all) * all;
    const double us = (std::ceil(items.count / all) - 1) * items.item_us() +
                      left / all * items.steps * items.price.step_us + 2 * items.price.item_us +
                      joined_us(p, all / left + 1, all + left, items.rows);
    const double time = us / predicted_us(p, m, sm_count);
    return time < kLastRoundWorth ? Shares{static_cast<int>(all), time} : kNone;
  }
  const double whole = unlimited_us(p, items, items.count, items.item_us());
  Shares best{0, kWorth};
  for (double parts = 2; parts * items.count <= all; parts *= 2) {
    const double us = items.price.item_us + std::ceil(items.steps / parts) * items.price.step_us;
    const double in_all = unlimited_us(p, items, parts * items.count, us) +
                          joined_us(p, parts, parts * items.count, items.rows);
    if (in_all / whole < best.time) {
      best = {static_cast<int>(parts * items.count), in_all / whole};
    }
  }
  return best.count > 0 ? best : kNone;
}

// Turns gain little where tiles are alike, and cost 1 % of items of up to four and up to 5 % where
// a mask makes some short.
bool takes_turns(const Problem& p, const Sm90Tile& tile) {
  return tile.pingpong && p.sk > 4 * tile.block_k && p.mask.is_full();
}

}  // namespace

std::vector<PricedTile> priced_sm90_tiles(const Problem& asked, int sm_count) {
  const Problem problem = priced_with_pack_gqa(asked);
  std::vector<PricedTile> priced;
  for (const MeasuredTile& m : kMeasured) {
    if (m.element != problem.dtype || m.head_dim != sm90_head_dim(problem.d) ||
        m.head_dim != sm90_head_dim(problem.dv)) {
      continue;
    }
    priced.push_back({predicted_us(problem, m, sm_count), m.tile});
    priced.back().tile.pingpong = takes_turns(problem, m.tile);
    const Shares shares = worthwhile_shares(problem, m, sm_count);
    if (shares.count == 0) continue;
    priced.push_back({shares.time * priced.back().us, priced.back().tile});
    priced.back().tile.num_splits = shares.count;
  }
  const auto cost = [&](const PricedTile& p) { return p.us * margin(p.tile, problem); };
  std::stable_sort(priced.begin(), priced.end(),
                   [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
  return priced;
}

namespace {

// Tiles in the order to try them: the priced ones, then the others.
std::vector<Sm90Tile> sm90_tiles(const Problem& problem, int sm_count) {
  std::vector<Sm90Tile> tiles;
  for (const PricedTile& priced : priced_sm90_tiles(problem, sm_count))
    tiles.push_back(priced.tile);
  tiles.insert(tiles.end(), std::begin(kTiles), std::end(kTiles));
  return tiles;
}

constexpr Sm90Tile kLeastTile{64, 64, 2, 1, false};

ForwardConfig config_of(const Problem& p, const Sm90Tile& t) {
  return {.target = Target::cuda_sm90,
          .element = p.dtype,
          .head_dim = sm90_head_dim(p.d),
          .value_dim = sm90_head_dim(p.dv),
          .block_q = t.block_q,
          .block_k = t.block_k,
          .warps = t.block_q / 16,
          .stages = t.stages,
          .ctas = 1,
          .q_stages = t.q_stages,
          .pingpong = t.pingpong,
          .cluster = t.cluster,
          .q_columns_in_regs = t.q_columns_in_regs,
          .pack_gqa = select_pack_gqa(p),
          .num_splits = t.num_splits,
          .varlen = p.packed()};
}

// Tiles in the order to try them; of packed sequences those first that were the fastest there, from
// so many rows on average on. Of the speed of the next best: d 128 1.07 (26 sequences of 16 to 2048
// rows), 1.11 (128 of 512), 0.98 (one of 8192 among short ones); d 64 1.18 (19 of 16 to 2048).
std::vector<Sm90Tile> tiles_to_try(const Problem& p, const Limits& limits) {
  if (!p.packed()) return sm90_tiles(p, limits.sm_count);
  struct VarlenTile {
    int dim;
    std::int64_t rows;
    Sm90Tile tile;
  };
  constexpr VarlenTile kFastest[] = {{64, 512, {256, 64, 4, 2, false}},
                                     {128, 0, {128, 64, 4, 2, false, 1, 128}}};
  std::vector<Sm90Tile> tiles = sm90_tiles(of_equal_lengths(p), limits.sm_count);
  for (const auto& [dim, rows, tile] : kFastest) {
    if (sm90_head_dim(p.d) == dim && sm90_head_dim(p.dv) == dim && p.total_q >= rows * p.b) {
      tiles.insert(tiles.begin(), tile);
    }
  }
  return tiles;
}

// Tiles in the order to try them.
struct ForwardTile {
  int block_q, block_k, warps, stages, ctas;
};

constexpr ForwardTile kForwardTiles[] = {
    {128, 64, 4, 2, 2}, {128, 32, 4, 2, 2}, {128, 64, 8, 2, 1}, {128, 32, 8, 2, 1},
    {64, 64, 4, 2, 2},  {64, 32, 4, 2, 2},  {64, 64, 4, 2, 3},  {128, 64, 4, 3, 2},
    {128, 32, 4, 3, 2}, {64, 32, 4, 2, 1},  {32, 32, 2, 2, 1},
};
// fp32: rows are twice as long, and 32 keys keep the unrolled products in the instruction cache.
constexpr ForwardTile kWideForwardTiles[] = {
    {128, 32, 8, 2, 1}, {64, 32, 4, 2, 2}, {128, 32, 4, 2, 2},
    {64, 32, 4, 2, 1},  {64, 16, 4, 2, 1}, {32, 16, 2, 2, 1},
};

// fp32x3, in the order to try them.
struct Fp32x3Tile {
  int block_q, block_k, stages;
};

constexpr Fp32x3Tile kFp32x3Tiles[] = {
    {128, 80, 1}, {128, 64, 2}, {128, 96, 2}, {192, 64, 2}, {128, 64, 1}, {64, 64, 1},
};

ForwardConfig config_of(const Problem& p, const Fp32x3Tile& t) {
  return {.target = Target::cuda_sm90,
          .element = DType::fp32,
          .head_dim = sm90_head_dim(p.d),
          .value_dim = sm90_head_dim(p.dv),
          .block_q = t.block_q,
          .block_k = t.block_k,
          .warps = t.block_q / 16,
          .stages = t.stages,
          .ctas = 1};
}

// Of cuda_sm80, or of cuda_sm75, where without asynchronous copies a second stage would only take
// room.
ForwardConfig config_of(const Problem& p, const ForwardTile& t, const Limits& limits) {
  const bool sm75 = limits.highest == Target::cuda_sm75;
  return {.target = sm75 ? Target::cuda_sm75 : Target::cuda_sm80,
          .element = p.dtype,
          .head_dim = gpu_head_dim(p.d),
          .value_dim = gpu_head_dim(p.dv),
          .block_q = t.block_q,
          .block_k = t.block_k,
          .warps = t.warps,
          .stages = sm75 ? 1 : t.stages,
          .ctas = t.ctas,
          .varlen = p.packed()};
}

std::span<const ForwardTile> portable_tiles(const Problem& p) {
  if (bytes_of(p.dtype) == 4) return kWideForwardTiles;
  return kForwardTiles;
}

std::vector<ForwardConfig> portable_candidates(const Problem& p, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  for (const ForwardTile& tile : portable_tiles(p)) {
    const ForwardConfig config = config_of(p, tile, limits);
    const bool is_new = std::ranges::find(legal, config) == legal.end();
    if (is_new && validate_portable(config, p, limits)) legal.push_back(config);
  }
  if (p.dtype == DType::fp32 && p.d == 64 && p.dv == 64) {
    // Measured at this head dim: two small blocks of a multiprocessor are 1.47 times one large.
    std::stable_partition(legal.begin(), legal.end(),
                          [](const ForwardConfig& c) { return c.block_q == 128 && c.ctas == 2; });
  }
  return legal;
}

}  // namespace

std::vector<ForwardConfig> sm90_candidates(const Problem& problem, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  if (std::max(problem.d, problem.dv) <= kPortableDim) return legal;
  if (problem.packed() && !kPackedOnSm90) return legal;
  for (const Sm90Tile& tile : tiles_to_try(problem, limits)) {
    const ForwardConfig config = config_of(problem, tile);
    const bool is_new = std::ranges::find(legal, config) == legal.end();
    if (is_new && validate_sm90(config, problem, limits)) legal.push_back(config);
  }
  return legal;
}

std::vector<ForwardConfig> fp32x3_candidates(const Problem& p, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  if (p.packed() || std::max(p.d, p.dv) <= kPortableDim) return legal;
  for (const Fp32x3Tile& tile : kFp32x3Tiles) {
    const ForwardConfig config = config_of(p, tile);
    if (validate_fp32x3(config, p, limits)) legal.push_back(config);
  }
  return legal;
}

template <>
std::vector<ForwardConfig> gpu_candidates(const Problem& asked, const Limits& limits) {
  const Problem problem = with_pack_gqa(asked);
  std::vector<ForwardConfig> legal = sm90_candidates(problem, limits);
  const std::vector<ForwardConfig> portable = portable_candidates(problem, limits);
  legal.insert(legal.end(), portable.begin(), portable.end());
  // The default where both passes can be: they have to round a problem's scores alike, and who
  // plans one may run the other.
  const std::vector<ForwardConfig> fp32x3 = fp32x3_candidates(problem, limits);
  const bool first = legal.empty() || fp32x3_fits(problem, limits);
  legal.insert(legal.begin() + (first ? 0 : 1), fp32x3.begin(), fp32x3.end());
  return legal;
}

ForwardConfig select_forward(const Problem& problem, const Limits& limits) {
  const std::vector<ForwardConfig> legal = gpu_candidates<ForwardConfig>(problem, limits);
  return legal.empty() ? config_of(problem, kForwardTiles[0], limits) : legal[0];
}

Verdict sm90_fits(const Problem& problem, const Limits& limits) {
  if (problem.dtype == DType::fp32) return fp32x3_fits(problem, limits);
  if (!sm90_candidates(problem, limits).empty()) return Verdict::yes();
  if (problem.packed() && !kPackedOnSm90) return Verdict::no(kNoPackedOnSm90);
  const Verdict verdict = validate_sm90(config_of(problem, kLeastTile), problem, limits);
  return verdict ? Verdict::no("cuda_sm90 would pad heads of up to 32 to 64") : verdict;
}

Verdict fp32x3_fits(const Problem& p, const Limits& limits) {
  if (p.packed()) return Verdict::no("cuda_sm90 in fp32 takes no packed sequences");
  if (fp32x3_candidates(p, limits).empty()) {
    const Verdict verdict = validate_fp32x3(config_of(p, Fp32x3Tile{64, 64, 1}), p, limits);
    return verdict ? Verdict::no("cuda_sm90 would pad heads of up to 32 to 64") : verdict;
  }
  return fp32x3_backward_fits(p, limits);
}

}  // namespace dfa
