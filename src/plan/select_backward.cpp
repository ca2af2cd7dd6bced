#include <algorithm>
#include <span>
#include <vector>

#include "plan/prices_backward.h"
#include "plan/schedule.h"
#include "plan/select.h"
#include "plan/steps.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "plan/within_blocks.h"
#include "spec/flops.h"

namespace dfa {
namespace {

using namespace prices;

constexpr int kStages = 2;
constexpr int kWarps = 8;
// Keys of a block: a warpgroup has dk and dv of 64, up to 128 columns each, or one of the two.
constexpr int kKeys = 2 * kGroupRows;
constexpr int kWideKeys = kGroupRows;
constexpr int kMaxDim = 128;
constexpr int kMediumDim = 96;
constexpr int kWideDim = 192;

bool is_wide(const Problem& p) {
  return p.d > kMaxDim || p.dv > kMaxDim || p.softcap != 0 || p.alibi;
}

BackwardConfig config_of(const Problem& p, DqAccumulation dq, int cluster) {
  const int head_dim = sm90_head_dim(p.d);
  BackwardConfig config{.target = Target::cuda_sm90,
                        .element = p.dtype,
                        .head_dim = head_dim,
                        .value_dim = sm90_head_dim(p.dv),
                        .block_q = head_dim > kGroupRows ? 64 : 128,
                        .block_k = is_wide(p) ? kWideKeys : kKeys,
                        .warps = kWarps,
                        .stages = kStages,
                        .ctas = 1,
                        .dq = dq,
                        .cluster = cluster,
                        .varlen = p.packed()};
  set_logits(config, p);
  return config;
}

// On average.
double seen_keys(const Problem& p) {
  return visible_pairs(p.mask, p.sq, p.sk) / static_cast<double>(p.sq);
}

// Where pairs wait for turns, those of later keys, which walk less of each query head, would have
// to wait for those of earlier ones at every head's end.
bool later_keys_walk_less(const Problem& p) {
  return !p.mask.is_full() && p.mask.left < 0 && p.hq > p.hk;
}

// What blocks of pairs walk of what one block of so many keys does, tiles of keys and queries that
// see any.
double steps_of_pairs(const Problem& p, int block_k) {
  const double seen = visible_pairs(p.mask, p.sq, p.sk) / static_cast<double>(p.sk);  // by a key
  const int sides = (p.mask.left >= 0 ? 1 : 0) + (p.mask.right >= 0 ? 1 : 0);
  const auto steps = [&](int keys) {
    const double queries = std::min(static_cast<double>(p.sq), seen + 0.5 * sides * keys);
    return static_cast<double>((p.sk + keys - 1) / keys * keys) * queries;
  };
  return steps(2 * block_k) / steps(block_k);
}

// Legal ones, in this order.
std::vector<BackwardConfig> legal_of(std::initializer_list<BackwardConfig> configs,
                                     const Problem& problem, const Limits& limits) {
  std::vector<BackwardConfig> legal;
  for (const BackwardConfig& config : configs) {
    if (validate_sm90(config, problem, limits)) legal.push_back(config);
  }
  return legal;
}

// Those of one block behind all others.
void take_pairs_last(std::vector<BackwardConfig>& legal) {
  std::ranges::stable_partition(legal, [](const BackwardConfig& c) { return c.cluster == 1; });
}

// A configuration that is changed for the better; a change that the rules refuse is not made.
class Preferred {
 public:
  Preferred(const BackwardConfig& config, const Problem& problem, const Limits& limits)
      : config_(config), problem_(problem), limits_(limits) {}

  template <typename Change>
  void change(const Change& change) {
    BackwardConfig changed = config_;
    change(changed);
    if (validate_sm90(changed, problem_, limits_)) config_ = changed;
  }

  // Sums as they come, zeroed and rounded beside.
  void add_as_they_come() {
    change([](BackwardConfig& c) {
      c.dq = DqAccumulation::atomic_fused;
      c.persistent = true;
    });
  }

  const BackwardConfig& config() const { return config_; }

 private:
  BackwardConfig config_;
  const Problem& problem_;
  const Limits& limits_;
};

// What the choices of d and dv up to 128 go by.
struct NarrowKind {
  double seen;
  bool full, causal, windowed;
  bool narrow, medium;  // d up to 64, up to 96

  explicit NarrowKind(const Problem& p)
      : seen(seen_keys(p)),
        full(p.mask.is_full()),
        causal(p.mask == kCausal),
        windowed(!full && !causal),
        narrow(sm90_head_dim(p.d) <= kGroupRows),
        medium(sm90_head_dim(p.d) <= kMediumDim) {}

  double most_pair_steps() const {
    if (!full) return kMaskedPairSteps;
    return narrow ? kNarrowPairSteps : kPairSteps;
  }
};

// Do pairs stay, and how is dq summed?
void choose_dq(Preferred& best, const Problem& p, const NarrowKind& kind) {
  if (kind.narrow || kind.seen <= kMostPersistentKeys || (kind.medium && !kind.full)) {
    best.change([](BackwardConfig& c) { c.persistent = true; });
  }
  if (p.sk >= (kind.narrow ? kNarrowRoundedKeys : kRoundedKeys) &&
      (kind.windowed || p.sk <= kMostRoundedKeys)) {
    best.change([](BackwardConfig& c) { c.dq = DqAccumulation::serialized_fused; });
  }
  const bool short_keys = p.sk <= kMostOrderedKeys;
  if (best.config().cluster > 1 && !kind.windowed && !short_keys) {
    best.change([&](BackwardConfig& c) {
      c.dq = DqAccumulation::atomic;
      c.persistent = kind.full || kind.narrow;
    });
  }
  const bool long_sums = p.sk > kMostTurnKeys && p.sq > kMostTurnKeys;
  const bool helped = kind.causal   ? short_keys
                      : kind.narrow ? kind.windowed && !short_keys
                                    : kind.seen > kMostTurnKeys;
  if (best.config().cluster > 1 && long_sums && helped) best.add_as_they_come();
}

// Work tiles of the last round, or few, in parts where that ends sooner. Few that all begin at once
// would wait for each other's turns.
void choose_parts(Preferred& best, const Problem& p, const Limits& limits, bool full) {
  best.change([&](BackwardConfig& c) {
    BackwardConfig parts = c;
    parts.split_q = true;
    if (!full) parts.persistent = true;
    if (select_split_q(p, parts, limits.sm_count).parts > 1) c = parts;
  });
  const BackwardConfig& c = best.config();
  const bool one_round = full && work_tiles_of(p, c) <= limits.sm_count / c.cluster;
  const bool long_round = std::min(p.sq, p.sk) >= kRoundedKeys;
  if (one_round ? long_round : c.split_q && !full) best.add_as_they_come();
}

// Of d and dv up to 128.
std::vector<BackwardConfig> narrow_candidates(const Problem& problem, const Limits& limits) {
  const NarrowKind kind(problem);
  const BackwardConfig block = config_of(problem, DqAccumulation::serialized, 1);
  const BackwardConfig pair = config_of(problem, DqAccumulation::serialized, 2);
  std::vector<BackwardConfig> legal = legal_of({pair, block}, problem, limits);
  if (steps_of_pairs(problem, kKeys) > kind.most_pair_steps()) take_pairs_last(legal);
  if (legal.empty()) return legal;

  Preferred preferred(legal.front(), problem, limits);
  choose_dq(preferred, problem, kind);
  if (!kind.full) preferred.change([](BackwardConfig& c) { c.masked = true; });
  const BackwardConfig whole = preferred.config();
  choose_parts(preferred, problem, limits, kind.full);
  BackwardConfig best = preferred.config();
  best.gqa_inner_loop = takes_gqa_inner_loop(best) && later_keys_walk_less(problem);
  if (whole != legal.front()) legal.insert(legal.begin(), whole);
  if (best != legal.front()) legal.insert(legal.begin(), best);
  return legal;
}

// Are sums as they come zeroed and rounded in the same grid, by pairs that stay?
bool helps_wide(const Problem& p) {
  if (p.deterministic) return false;
  if (sm90_head_dim(std::max(p.d, p.dv)) > kWideDim) return seen_keys(p) <= kMostWidestHelpedKeys;
  return !p.mask.is_full() || (p.sk > kMostKeysUnhelped && p.sk <= kMostOrderedKeys);
}

double most_wide_pair_steps(const Problem& p, bool helped, bool stays) {
  const bool widest = sm90_head_dim(std::max(p.d, p.dv)) > kWideDim;
  if (p.deterministic) return kWideTurnPairSteps;
  if (helped) return widest ? kWidestHelpedPairSteps : kHelpedPairSteps;
  return widest && !stays ? kWidestPairSteps : kWidePairSteps;
}

// Of d or dv from 129 on.
std::vector<BackwardConfig> wide_candidates(const Problem& problem, const Limits& limits) {
  auto legal = legal_of(
      {config_of(problem, DqAccumulation::atomic, 2), config_of(problem, DqAccumulation::atomic, 1),
       config_of(problem, DqAccumulation::serialized, 2),
       config_of(problem, DqAccumulation::serialized, 1)},
      problem, limits);
  const bool stays = (problem.mask.is_full() || problem.mask == kCausal) &&
                     seen_keys(problem) <= kMostWidePersistentKeys;
  const bool helped = helps_wide(problem);
  if (steps_of_pairs(problem, kWideKeys) > most_wide_pair_steps(problem, helped, stays)) {
    take_pairs_last(legal);
  }
  if (legal.empty()) return legal;
  BackwardConfig best = legal.front();
  if (best.dq == DqAccumulation::atomic && best.cluster == 2) {
    if (helped) best.dq = DqAccumulation::atomic_fused;
    best.persistent = helped || stays;
  }
  best.gqa_inner_loop = takes_gqa_inner_loop(best) && later_keys_walk_less(problem);
  if (best != legal.front()) legal.insert(legal.begin(), best);
  return legal;
}

// Of packed sequences: sums as they come where bits may differ. Lengths are not known.
std::vector<BackwardConfig> varlen_candidates(const Problem& problem, const Limits& limits) {
  const auto dq = problem.deterministic ? DqAccumulation::serialized : DqAccumulation::atomic;
  BackwardConfig pair = config_of(problem, dq, 2);
  pair.masked = !problem.mask.is_full() && !is_wide(problem);
  std::vector<BackwardConfig> legal =
      legal_of({pair, config_of(problem, dq, 1), config_of(problem, DqAccumulation::serialized, 1)},
               problem, limits);
  const bool narrow_heads = sm90_head_dim(problem.d) <= kGroupRows && problem.hq == problem.hk;
  if (problem.total_k < kLeastMeanKeys * problem.b || narrow_heads) take_pairs_last(legal);
  return legal;
}

struct KeyTile {
  int block_k, block_q, warps, sharing, ctas;
};

constexpr KeyTile kKeyTiles[] = {
    {128, 32, 4, 1, 2}, {64, 64, 4, 2, 2}, {128, 64, 8, 2, 1}, {64, 64, 8, 2, 1}, {64, 32, 8, 2, 1},
    {64, 32, 4, 1, 2},  {64, 32, 4, 1, 1}, {32, 32, 4, 2, 1},  {16, 32, 2, 2, 1},
};

constexpr KeyTile kWideKeyTiles[] = {
    {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 32, 8, 2, 1}, {32, 32, 4, 2, 1},
    {32, 16, 4, 2, 1}, {32, 16, 2, 1, 1}, {16, 16, 2, 2, 1}, {16, 16, 1, 1, 1},
};

// dq = serialized: tiles of keys, the rows of a turn, and where they were measured to be faster
// than a separate kernel (kOfPortable): the head dim, and how many thread blocks it takes for those
// of one head, which start behind one another, not to be all there is to do. 0: nowhere.
struct SerializedTile {
  KeyTile keys;
  int turn;
  int dim;
  int blocks;
};

constexpr SerializedTile kSerializedTiles[] = {
    {{128, 64, 8, 2, 1}, 128, 128, 512},
    {{128, 32, 4, 1, 2}, 128, 64, 1024},
    {{64, 64, 8, 2, 1}, 128, 256, 1024},
    {{64, 64, 4, 2, 2}, 128, 0, 0},
};

struct QueryTile {
  int block_q, block_k, warps, ctas;
};

constexpr QueryTile kQueryTiles[] = {
    {128, 64, 4, 2}, {128, 32, 4, 2}, {64, 64, 4, 2}, {64, 32, 4, 2},
    {128, 32, 8, 1}, {64, 32, 4, 1},  {32, 32, 2, 1},
};

constexpr QueryTile kWideQueryTiles[] = {
    {64, 32, 4, 2}, {64, 32, 4, 1}, {64, 16, 4, 1}, {32, 16, 2, 1}, {16, 16, 1, 1},
};

// Heads in slices, the largest that fit; keys and queries are owned and walked alike. Not measured.
constexpr KeyTile kSlicedKeyTiles[] = {
    {64, 64, 4, 1, 1}, {64, 32, 4, 1, 1}, {32, 32, 2, 1, 1}, {32, 16, 2, 1, 1}, {16, 16, 1, 1, 1},
};
constexpr QueryTile kSlicedQueryTiles[] = {
    {64, 64, 4, 1}, {64, 32, 4, 1}, {32, 32, 2, 1}, {32, 16, 2, 1}, {16, 16, 1, 1},
};

// fp32x3, in the order to try them.
struct Fp32x3Tile {
  int block_q, stages;
};

constexpr Fp32x3Tile kFp32x3Tiles[] = {{128, 1}, {64, 2}, {64, 1}};

BackwardConfig config_of(const Problem& p, const Fp32x3Tile& tile) {
  return {.target = Target::cuda_sm90,
          .element = DType::fp32,
          .head_dim = sm90_head_dim(p.d),
          .value_dim = sm90_head_dim(p.dv),
          .block_q = tile.block_q,
          .block_k = kGroupRows,
          .warps = kWarps,
          .stages = tile.stages,
          .ctas = 1,
          .dq = DqAccumulation::serialized};
}

// Of cuda_sm80, or of cuda_sm75, where without asynchronous copies a second stage would only take
// room.
BackwardConfig config_of(const Problem& p, const KeyTile& keys, const QueryTile& queries,
                         const Limits& limits) {
  const bool sm75 = limits.highest == Target::cuda_sm75;
  BackwardConfig config{.target = sm75 ? Target::cuda_sm75 : Target::cuda_sm80,
                        .element = p.dtype,
                        .head_dim = gpu_head_dim(p.d),
                        .value_dim = gpu_head_dim(p.dv),
                        .block_q = keys.block_q,
                        .block_k = keys.block_k,
                        .warps = keys.warps,
                        .sharing = keys.sharing,
                        .stages = sm75 ? 1 : 2,
                        .ctas = keys.ctas,
                        .dq_block_q = queries.block_q,
                        .dq_block_k = queries.block_k,
                        .dq_warps = queries.warps,
                        .dq_ctas = queries.ctas,
                        .varlen = p.packed()};
  set_logits(config, p);
  config.ranges = !p.mask.is_window();
  config.dropout = p.dropout > 0;
  config.blocks = p.blocks.has_value();
  return config;
}

BackwardConfig config_of(const Problem& p, const SerializedTile& tile, const Limits& limits) {
  constexpr BackwardConfig kNone;  // there is no kernel of dq with tiles of its own
  BackwardConfig c =
      config_of(p, tile.keys, {tile.turn, kNone.dq_block_k, kNone.dq_warps, kNone.dq_ctas}, limits);
  c.dq = DqAccumulation::serialized;
  return c;
}

bool serialized_pays(const SerializedTile& tile, const BackwardConfig& c, const Problem& p) {
  const std::int64_t blocks = p.b * p.hk * ((p.sk + c.block_k - 1) / c.block_k);
  return c.head_dim == tile.dim && c.value_dim == tile.dim && blocks >= tile.blocks;
}

// Warps that share keys stop sharing where a tile has too few queries; else as within_blocks.h.
KeyTile within_blocks(const Problem& p, KeyTile tile) {
  if (!p.blocks) return tile;
  const int least_shared = bytes_of(p.dtype) == 4 ? 16 : 32;  // queries of a tile
  while (p.blocks->block_q % tile.block_q != 0) tile.block_q /= 2;
  if (tile.sharing > 1 && tile.block_q < least_shared) {
    tile.warps /= tile.sharing;
    tile.sharing = 1;
  }
  while (p.blocks->block_k % tile.block_k != 0) {
    if (tile.warps > tile.sharing) tile.warps /= 2;
    tile.block_k /= 2;
  }
  return tile;
}

std::span<const QueryTile> query_tiles_of(const Problem& p) {
  if (std::max(p.d, p.dv) > kMostColumns) return kSlicedQueryTiles;
  return bytes_of(p.dtype) == 4 ? std::span<const QueryTile>(kWideQueryTiles) : kQueryTiles;
}

std::span<const KeyTile> key_tiles_of(const Problem& p) {
  if (std::max(p.d, p.dv) > kMostColumns) return kSlicedKeyTiles;
  return bytes_of(p.dtype) == 4 ? std::span<const KeyTile>(kWideKeyTiles) : kKeyTiles;
}

std::vector<BackwardConfig> portable_candidates(const Problem& p, const Limits& limits) {
  std::vector<BackwardConfig> legal, later;
  for (const SerializedTile& tile : kSerializedTiles) {
    const BackwardConfig config = config_of(p, tile, limits);
    if (!validate_portable(config, p, limits)) continue;
    (serialized_pays(tile, config, p) ? legal : later).push_back(config);
  }
  for (const QueryTile& queries : query_tiles_of(p)) {
    for (const KeyTile& keys : key_tiles_of(p)) {
      const BackwardConfig config =
          config_of(p, within_blocks(p, keys), within_blocks(p, queries), limits);
      const bool is_new = std::ranges::find(legal, config) == legal.end();
      if (is_new && validate_portable(config, p, limits)) legal.push_back(config);
    }
  }
  legal.insert(legal.end(), later.begin(), later.end());
  return legal;
}

}  // namespace

std::vector<BackwardConfig> sm90_backward_candidates(const Problem& problem, const Limits& limits) {
  if (std::max(problem.d, problem.dv) > kMostColumns) return {};
  if (problem.packed()) return varlen_candidates(problem, limits);
  return is_wide(problem) ? wide_candidates(problem, limits) : narrow_candidates(problem, limits);
}

std::vector<BackwardConfig> fp32x3_backward_candidates(const Problem& p, const Limits& limits) {
  std::vector<BackwardConfig> legal;
  if (p.packed() || !p.plain()) return legal;
  for (const Fp32x3Tile& tile : kFp32x3Tiles) {
    const BackwardConfig config = config_of(p, tile);
    if (validate_fp32x3(config, p, limits)) legal.push_back(config);
  }
  return legal;
}

template <>
std::vector<BackwardConfig> gpu_candidates(const Problem& problem, const Limits& limits) {
  std::vector<BackwardConfig> legal = sm90_backward_candidates(problem, limits);
  const std::vector<BackwardConfig> portable = portable_candidates(problem, limits);
  legal.insert(legal.end(), portable.begin(), portable.end());
  const std::vector<BackwardConfig> fp32x3 = fp32x3_backward_candidates(problem, limits);
  const bool first = legal.empty() || fp32x3_fits(problem, limits);  // as in the forward
  legal.insert(legal.begin() + (first ? 0 : 1), fp32x3.begin(), fp32x3.end());
  return legal;
}

BackwardConfig select_backward(const Problem& problem, const Limits& limits) {
  const std::vector<BackwardConfig> legal = gpu_candidates<BackwardConfig>(problem, limits);
  if (!legal.empty()) return legal[0];
  return config_of(problem, within_blocks(problem, kKeyTiles[0]),
                   within_blocks(problem, kQueryTiles[0]), limits);
}

Verdict sm90_backward_fits(const Problem& p, const Limits& limits) {
  if (p.dtype == DType::fp32) return fp32x3_fits(p, limits);
  if (!sm90_backward_candidates(p, limits).empty()) return Verdict::yes();
  if (p.bias) return Verdict::no("cuda_sm90 adds no bias to logits");
  const auto dq =
      is_wide(p) && !p.deterministic ? DqAccumulation::atomic : DqAccumulation::serialized;
  return validate_sm90(config_of(p, dq, 1), p, limits);
}

Verdict fp32x3_backward_fits(const Problem& p, const Limits& limits) {
  if (!fp32x3_backward_candidates(p, limits).empty()) return Verdict::yes();
  return validate_fp32x3(config_of(p, Fp32x3Tile{64, 1}), p, limits);
}

}  // namespace dfa
