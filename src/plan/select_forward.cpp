#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "plan/pack_gqa.h"
#include "plan/prices_e4m3.h"
#include "plan/prices_forward.h"
#include "plan/select.h"
#include "plan/select_split_kv.h"
#include "plan/steps.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "plan/within_blocks.h"
#include "spec/e4m3.h"
#include "spec/flops.h"
#include "spec/lengths.h"
#include "spec/user_text.h"
#include "spec/values_in_keys.h"

namespace dfa {
namespace {

using namespace prices;

// What else there is, in the order to try it: the largest that fit were the fastest.
constexpr Sm90Tile kTiles[] = {
    {192, 128, 3, 2, false}, {128, 128, 3, 2, true},  {128, 128, 2, 2, true},
    {128, 128, 2, 1, false}, {128, 112, 2, 1, false}, {128, 80, 2, 1, false},
    {128, 176, 2, 1, true},  {128, 64, 2, 1, false},  {64, 128, 2, 2, false},
    {64, 80, 2, 1, false},   {256, 64, 4, 2, false},  {192, 80, 2, 2, false},
    {192, 64, 3, 2, false},
};

double margin(const Sm90Tile& tile, const Problem& p) {
  if (tile.pack_gqa > 1) return kPackedMargin;
  if (tile.cluster > 1) return p.sk <= kShortKeys ? kShortPairMargin : kPairMargin;
  return tile.block_q > 128 ? kLargeMargin : 1.0;
}

double alibi_step(const Sm90Tile& tile) {
  if (tile.pingpong) return kAlibiStepPingpong;
  return tile.q_columns_in_regs > 0 ? kAlibiStepHeld : kAlibiStep;
}

// A problem's work tiles by a measured one: what there is to do, and what it takes.
struct WorkTiles {
  double count, of_head, at_once, steps;  // steps of one, on average
  double rows;                            // of one
  bool masked;
  TilePrice price;

  WorkTiles(const Problem& p, const MeasuredTile& m, int sm_count)
      : at_once(std::max(1, sm_count / m.tile.cluster)), masked(hides_keys(p)) {
    const int heads = std::max(1, m.tile.pack_gqa);
    const int most = m.tile.cluster * m.tile.block_q / heads;  // queries
    std::int64_t all_steps = 0;
    for (std::int64_t query = 0; query < p.sq; query += most) {
      all_steps += key_steps(p, query, most, m.tile.block_k);
    }
    of_head = static_cast<double>(tiles_of(p.sq, most));
    count = static_cast<double>(p.b * p.hq / heads) * of_head;
    steps = static_cast<double>(all_steps) / of_head;
    rows = static_cast<double>(heads * std::min<std::int64_t>(most, p.sq));
    price = masked ? m.masked : m.full;
    if (p.softcap != 0) price.step_us *= kSoftcapStep;
    if (p.alibi) price.step_us *= alibi_step(m.tile);
    if (p.bias) price.step_us *= kBiasStep;
    if (p.has_text()) price.step_us *= 1 + kTextStep * instructions_of_texts(p);
  }
  double tile_us() const { return price.tile_us + steps * price.step_us; }
};

// The rounds that they come in, times what they take.
double predicted_us(const Problem& p, const MeasuredTile& m, int sm_count) {
  const WorkTiles tiles(p, m, sm_count);
  // Under a mask they differ, and the rounds even out.
  const double rounds = tiles.masked ? std::max(1., tiles.count / tiles.at_once)
                                     : std::ceil(tiles.count / tiles.at_once);
  // A block without queries is of no use.
  const int blocks = p.sq <= m.tile.block_q ? m.tile.cluster : 1;
  return blocks * rounds * tiles.tile_us();
}

// What reading keys and values once takes.
double read_us(const Problem& p) {
  const std::int64_t columns = values_in_keys(p) ? p.d : p.d + p.dv;
  return static_cast<double>(bytes_of(p.dtype) * p.b * p.hk * p.sk * columns) / kReadBytesPerUs;
}

double unlimited_us(const WorkTiles& tiles, double blocks, double us, double read) {
  const double pace =
      std::clamp(kPaceAlone + kPaceTogether * blocks / tiles.at_once, kLeastPace.value, 1.);
  const double busy = pace * us;
  return std::max(busy, read) + kBeside * std::min(busy, read);
}

double combined_us(const Problem& p, double splits_of_tile, double splits, double rows) {
  return kCombineUs + kCombineSplitUs * splits_of_tile +
         2 * sizeof(float) * splits * rows * static_cast<double>(p.dv) / kCombineBytesPerUs;
}

// Work tiles cut along their keys, and what a call takes then of what it takes without; {0, 1}
// where it is not worth it.
struct Splits {
  int count;
  double time;
};
constexpr Splits kWhole{0, 1};

// Those behind whole rounds, in equal parts for all blocks.
Splits split_last_round(const Problem& p, const WorkTiles& tiles, double whole_us) {
  const double all = tiles.at_once;
  const double left = tiles.count - std::floor((tiles.count - 1) / all) * all;
  const double us = (std::ceil(tiles.count / all) - 1) * tiles.tile_us() +
                    left / all * tiles.steps * tiles.price.step_us + 2 * tiles.price.tile_us +
                    combined_us(p, all / left + 1, all + left, tiles.rows);
  const double time = us / whole_us;
  return time < kLastRoundWorth ? Splits{static_cast<int>(all), time} : kWhole;
}

// Few, into 2, 4, 8, … parts each, as many as pay and as there are blocks for.
Splits split_few(const Problem& p, const WorkTiles& tiles, double read) {
  const double whole = unlimited_us(tiles, tiles.count, tiles.tile_us(), read);
  Splits best{0, kSplitWorth};
  for (double parts = 2; parts * tiles.count <= tiles.at_once; parts *= 2) {
    const double us = tiles.price.tile_us + std::ceil(tiles.steps / parts) * tiles.price.step_us;
    const double splits = parts * tiles.count;
    const double time =
        (unlimited_us(tiles, splits, us, read) + combined_us(p, parts, splits, tiles.rows)) / whole;
    if (time < best.time) best = {static_cast<int>(splits), time};
  }
  return best.count > 0 ? best : kWhole;
}

Splits worthwhile_splits(const Problem& p, const MeasuredTile& m, int sm_count, double read) {
  const WorkTiles tiles(p, m, sm_count);
  if (m.tile.block_q > kMostSharedQueries || (tiles.masked && tiles.of_head > 1)) return kWhole;
  return tiles.count > tiles.at_once ? split_last_round(p, tiles, predicted_us(p, m, sm_count))
                                     : split_few(p, tiles, read);
}

// Of heads above kMostColumns also into as many parts as there are blocks for: each work tile is
// long there, and few fill a round.
Splits sliced_splits(const Problem& asked, int sm_count) {
  const Problem p = priced_with_pack_gqa(asked);
  const double columns =
      static_cast<double>(sm90_sliced_dim(p.d) + sm90_sliced_dim(p.dv)) / kSlicedColumns;
  const TilePrice price{kSlicedTile.tile_us, columns * kSlicedTile.step_us};
  const MeasuredTile m{
      p.dtype, sm90_sliced_dim(p.d), price, price, {kGroupRows, kGroupRows, 4, 1, false}};
  const WorkTiles tiles(p, m, sm_count);
  const double read = read_us(asked);  // once, whatever heads there are
  Splits best = worthwhile_splits(p, m, sm_count, read);
  if (tiles.count > tiles.at_once || (tiles.masked && tiles.of_head > 1)) return best;
  const double parts = tiles.at_once / tiles.count;
  const double us = 2 * tiles.price.tile_us + std::ceil(tiles.steps / parts) * tiles.price.step_us;
  const double time = (unlimited_us(tiles, tiles.at_once, us, read) +
                       combined_us(p, parts + 1, tiles.at_once + tiles.count, tiles.rows)) /
                      unlimited_us(tiles, tiles.count, tiles.tile_us(), read);
  if (time < std::min(best.time, kSplitWorth.value)) best = {sm_count, time};
  return best;
}

// In e4m3: what v transposed before the forward takes, and the tile with v transposed in it.
double pack_us(const Problem& p) {
  return kPackUs + 2 * static_cast<double>(p.b * p.hk * p.sk * p.dv) / kPackBytesPerUs;
}
MeasuredTile transposing(MeasuredTile m) {
  const double step = m.head_dim > 128 ? kWideTransposingStep : kTransposingStep;
  m.full.step_us *= step;
  m.masked.step_us *= step;
  return m;
}

// The tile with heads as rows that see fewer keys together.
MeasuredTile with_heads(MeasuredTile m, int heads) {
  m.tile.pack_gqa = heads;
  m.tile.pingpong = false;
  return m;
}

bool takes_turns(const Problem& p, const Sm90Tile& tile) {
  return tile.pingpong && p.sk > kPingpongSteps * tile.block_k && p.mask.is_full() && !p.blocks;
}

}  // namespace

std::vector<PricedTile> priced_sm90_tiles(const Problem& asked, int sm_count) {
  const Problem problem = priced_with_pack_gqa(asked);
  const int heads = pack_gqa_under_window(asked);
  std::vector<PricedTile> priced;
  const bool e4m3 = problem.dtype == DType::e4m3;
  for (const MeasuredTile& m : e4m3 ? std::span<const MeasuredTile>(kGuessedE4m3) : kMeasured) {
    if (m.element != problem.dtype || m.head_dim != sm90_head_dim(problem.d) ||
        m.head_dim != sm90_head_dim(problem.dv)) {
      continue;
    }
    if (heads > 1) {
      const MeasuredTile rows = with_heads(m, heads);
      priced.push_back({predicted_us(problem, rows, sm_count), rows.tile});
    }
    priced.push_back({predicted_us(problem, m, sm_count), m.tile});
    priced.back().tile.pingpong = takes_turns(problem, m.tile);
    if (e4m3) {
      PricedTile other = priced.back();
      other.us = predicted_us(problem, transposing(m), sm_count);
      other.tile.transpose_values = true;
      priced.back().us += pack_us(problem);
      priced.push_back(other);
      continue;
    }
    const Splits splits = worthwhile_splits(problem, m, sm_count, read_us(problem));
    if (splits.count == 0) continue;
    priced.push_back({splits.time * priced.back().us, priced.back().tile});
    priced.back().tile.num_splits = splits.count;
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
  if (problem.dtype == DType::e4m3) {
    if (problem.descale_rows > 0) {
      tiles.insert(tiles.end(), std::begin(kE4m3BlockTiles), std::end(kE4m3BlockTiles));
    }
    for (const MeasuredTile& m : kGuessedE4m3) tiles.push_back(m.tile);
    tiles.insert(tiles.end(), std::begin(kOtherE4m3), std::end(kOtherE4m3));
    return tiles;
  }
  tiles.insert(tiles.end(), std::begin(kTiles), std::end(kTiles));
  return tiles;
}

// Tiles of lists alone: of blocks of 64 queries.
constexpr Sm90Tile kListedTiles[] = {
    {64, 128, 2, 1, false}, {64, 64, 4, 2, false}, {64, 64, 2, 1, false}};

constexpr Sm90Tile kLeastTile{64, 64, 2, 1, false}, kLeastE4m3Tile{64, 64, 2, 2, false};

const Sm90Tile& least_tile(const Problem& p) {
  return p.dtype == DType::e4m3 ? kLeastE4m3Tile : kLeastTile;
}

// In e4m3 references follow the maxima of a warp's rows closely, so that rows which are left would
// change other heads' bits: whole powers of two alone.
int pack_gqa_of(const Problem& p) {
  const int heads = select_pack_gqa(p);
  return p.dtype == DType::e4m3 && (heads & (heads - 1)) != 0 ? 1 : heads;
}

Verdict validate_hopper(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  return is_e4m3(c) ? validate_e4m3(c, p, limits) : validate_sm90(c, p, limits);
}

// Wide heads have fewer registers left for q where logits are made.
int q_columns_in_regs(const Problem& p, const Sm90Tile& t) {
  const int fewer = (p.blocks || p.paged()) && p.softcap != 0 ? 0 : 64;
  const bool few =
      (p.softcap != 0 || p.alibi || p.bias || p.has_text()) && sm90_head_dim(p.dv) > 192;
  return few ? std::min(t.q_columns_in_regs, fewer) : t.q_columns_in_regs;
}

ForwardConfig config_of(const Problem& p, const Sm90Tile& t) {
  ForwardConfig config{.target = Target::cuda_sm90,
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
                       .q_columns_in_regs = q_columns_in_regs(p, t),
                       .pack_gqa = t.pack_gqa > 0 ? t.pack_gqa : pack_gqa_of(p),
                       .num_splits = t.num_splits,
                       .varlen = p.packed(),
                       .paged = p.paged(),
                       .ranges = !p.mask.is_window(),
                       .dropout = p.dropout > 0,
                       .blocks = p.blocks.has_value(),
                       .descale_blocks = p.descale_rows > 0,
                       .transpose_values = t.transpose_values};
  set_logits(config, p);
  return config;
}

// Of lists of blocks first what has the least beside its steps, as these are few, then all that
// divide small blocks too. Warpgroups are not in ping-pong there.
std::vector<Sm90Tile> tiles_of_lists(const Problem& p, int sm_count) {
  std::vector<Sm90Tile> tiles = sm90_tiles(p, sm_count);
  if (sm90_head_dim(p.d) == kListedTile.dim && sm90_head_dim(p.dv) == kListedTile.dim) {
    tiles.insert(tiles.begin(), kListedTile.tile);
  }
  tiles.insert(tiles.end(), std::begin(kListedTiles), std::end(kListedTiles));
  for (Sm90Tile& tile : tiles) tile.pingpong = false;
  return tiles;
}

// Of packed sequences those first that were the fastest there.
std::vector<Sm90Tile> tiles_to_try(const Problem& p, const Limits& limits) {
  if (p.blocks) return tiles_of_lists(p, limits.sm_count);
  if (!p.packed()) return sm90_tiles(p, limits.sm_count);
  std::vector<Sm90Tile> tiles = sm90_tiles(of_equal_lengths(p), limits.sm_count);
  for (const auto& [dim, rows, tile] : kVarlenTiles) {
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

// Heads in slices: the largest that fit, as all of q is there. Not measured.
constexpr ForwardTile kSlicedForwardTiles[] = {
    {128, 64, 8, 2, 1}, {64, 64, 4, 2, 1}, {64, 32, 4, 2, 1}, {64, 16, 4, 2, 1},
    {32, 32, 2, 2, 1},  {32, 16, 2, 2, 1}, {16, 16, 1, 2, 1},
};

// Of cuda_sm80, or of cuda_sm75, where without asynchronous copies a second stage would only take
// room.
ForwardConfig config_of(const Problem& p, const ForwardTile& t, const Limits& limits) {
  const bool sm75 = limits.highest == Target::cuda_sm75;
  ForwardConfig config{.target = sm75 ? Target::cuda_sm75 : Target::cuda_sm80,
                       .element = p.dtype,
                       .head_dim = gpu_head_dim(p.d),
                       .value_dim = gpu_head_dim(p.dv),
                       .block_q = t.block_q,
                       .block_k = t.block_k,
                       .warps = t.warps,
                       .stages = sm75 ? 1 : t.stages,
                       .ctas = t.ctas,
                       .varlen = p.packed(),
                       .paged = p.paged()};
  set_logits(config, p);
  config.ranges = !p.mask.is_window();
  config.dropout = p.dropout > 0;
  config.blocks = p.blocks.has_value();
  return config;
}

// Of heads above kMostColumns.
ForwardConfig sliced_config_of(const Problem& p) {
  ForwardConfig config = config_of(p, kLeastTile);
  config.head_dim = sm90_sliced_dim(p.d);
  config.value_dim = sm90_sliced_dim(p.dv);
  config.warps = 8;
  config.stages = 4;
  return config;
}

// The same with keys in splits, where that is worth it.
ForwardConfig split_sliced_config_of(const Problem& p, const Limits& limits) {
  ForwardConfig config = sliced_config_of(p);
  if (takes_sliced_split_kv(p)) return with_sliced_split_kv(config, p, limits);
  if (!p.packed() && !p.blocks && sm90_sliced_dim(p.d) > 0 && sm90_sliced_dim(p.dv) > 0) {
    config.num_splits = sliced_splits(p, limits.sm_count).count;
  }
  return config;
}

// In the order to try them, while `visit` says so.
template <typename Visit>
void for_sm90_tiles(const Problem& p, const Limits& limits, const Visit& visit) {
  const bool e4m3 = p.dtype == DType::e4m3;
  // Biases are copied ahead there, which is worth padded columns.
  const bool narrow = std::max(p.d, p.dv) <= kPortableDim && !p.bias;
  if (!e4m3 && (narrow || bytes_of(p.dtype) != 2)) return;
  if (e4m3 && p.paged()) return;
  if (limits.highest != Target::cuda_sm90) return;
  if (std::max(p.d, p.dv) > kMostColumns) {
    const ForwardConfig whole = sliced_config_of(p), split = split_sliced_config_of(p, limits);
    if (split == whole || visit(split)) visit(whole);
    return;
  }
  for (const Sm90Tile& tile : tiles_to_try(p, limits)) {
    if (!visit(config_of(p, tile))) return;
  }
}

std::optional<ForwardConfig> first_sm90(const Problem& p, const Limits& limits) {
  std::optional<ForwardConfig> first;
  for_sm90_tiles(p, limits, [&](const ForwardConfig& config) {
    if (validate_hopper(config, p, limits)) first = config;
    return !first;
  });
  return first;
}

std::span<const ForwardTile> portable_tiles(const Problem& p) {
  if (std::max(p.d, p.dv) > kMostColumns) return kSlicedForwardTiles;
  if (bytes_of(p.dtype) == 4) return kWideForwardTiles;
  return kForwardTiles;
}

std::vector<ForwardConfig> portable_candidates(const Problem& p, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  for (const ForwardTile& tile : portable_tiles(p)) {
    const ForwardConfig config = config_of(p, within_blocks(p, tile), limits);
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
  for_sm90_tiles(problem, limits, [&](const ForwardConfig& config) {
    const bool is_new = std::ranges::find(legal, config) == legal.end();
    if (is_new && validate_hopper(config, problem, limits)) legal.push_back(config);
    return true;
  });
  return legal;
}

template <>
std::vector<ForwardConfig> gpu_candidates(const Problem& asked, const Limits& limits) {
  const Problem problem = with_pack_gqa(asked);
  std::vector<ForwardConfig> legal = sm90_candidates(problem, limits);
  const std::vector<ForwardConfig> portable = portable_candidates(problem, limits);
  const std::vector<ForwardConfig> split = split_kv_candidates(problem, limits);
  const bool few = split_kv_is_first(problem);
  legal.insert(legal.end(), portable.begin(), portable.end());
  legal.insert(few ? legal.begin() : legal.end(), split.begin(), split.end());
  // The default where both passes can be: they have to round a problem's scores alike, and who
  // plans one may run the other.
  const std::vector<ForwardConfig> fp32x3 = fp32x3_candidates(problem, limits);
  const bool first = legal.empty() || fp32x3_fits(problem, limits);
  legal.insert(legal.begin() + (first ? 0 : 1), fp32x3.begin(), fp32x3.end());
  return legal;
}

namespace {

// What a batch-invariant problem is selected by: lengths that are the same for all, as tiles decide
// about bits. Of packed keys, and of pages under chunked and prefix masks, no candidate cuts work
// along its keys; other pages are cut by a size that is the same for all.
Problem without_company(Problem p) {
  constexpr std::int64_t kRows = 4096;
  if (!p.batch_invariant) return p;
  p.b = 1;
  p.sq = p.sk = p.total_q = kRows;
  p.total_k = p.paged() ? std::max(p.total_k, rows_of_pages({kRows}, p.page)) : kRows;
  p.lens_q.clear();
  p.lens_k.clear();
  return p;
}

}  // namespace

// Asked for every token of a growing cache, so it prices all tiles and looks at the rules of few.
ForwardConfig select_forward(const Problem& asked, const Limits& limits) {
  const Problem problem = without_company(asked), rows = with_pack_gqa(problem);
  if (split_kv_is_first(rows)) {
    const std::vector<ForwardConfig> split = split_kv_candidates(rows, limits);
    if (!split.empty()) return split[0];
  }
  if (const auto sm90 = first_sm90(rows, limits)) return *sm90;
  if (problem.dtype == DType::e4m3 && limits.highest == Target::cuda_sm90) {
    return config_of(problem, kLeastE4m3Tile);  // which says why
  }
  const std::vector<ForwardConfig> legal = gpu_candidates<ForwardConfig>(problem, limits);
  return legal.empty() ? config_of(problem, within_blocks(problem, kForwardTiles[0]), limits)
                       : legal[0];
}

Verdict sm90_fits(const Problem& problem, const Limits& limits) {
  if (problem.dtype == DType::fp32) return fp32x3_fits(problem, limits);
  if (!sm90_candidates(problem, limits).empty()) return Verdict::yes();
  const bool sliced = std::max(problem.d, problem.dv) > kMostColumns;
  const ForwardConfig least =
      sliced ? sliced_config_of(problem) : config_of(problem, least_tile(problem));
  const Verdict verdict = validate_hopper(least, problem, limits);
  return verdict ? Verdict::no("cuda_sm90 would pad heads of up to 32 to 64") : verdict;
}

}  // namespace dfa
