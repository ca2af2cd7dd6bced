#include <algorithm>
#include <span>
#include <vector>

#include "plan/schedule.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/flops.h"

namespace dfa {
namespace {

constexpr int kStages = 2;
constexpr int kWarps = 8;
// Keys of a block: a warpgroup has dk and dv of 64, up to 128 columns each, or one of the two.
constexpr int kKeys = 2 * kGroupRows;
constexpr int kWideKeys = kGroupRows;
constexpr int kMaxDim = 128;
constexpr int kMediumDim = 96;
constexpr int kWideDim = 192;

bool is_wide(const Problem& p) { return p.d > kMaxDim || p.dv > kMaxDim; }

// Halves what blocks read and add up beside the tensor cores. What it walks more than one block
// (steps_of_pairs) costs: 1.12 of its speed at d 128 and 512 keys, 0.92 at 384 (1.33 of its steps);
// 1.16 at d 64 and 256 keys. Under a mask half of that is skipped: d 128 window(511,0) 1.06 of the
// speed and 1.07 of the work per joule, window(255,0) 1.03 and 1.04 (1.33), window(64,64) 1.015 and
// 1.01 (1.5), causal 256 1.065 and 1.055 (1.33), 384 0.99 and 0.995 (1.67); d 64 1.06
// and 1.05, 1.00 and 1.00, 1.05 and 1.08, causal 256 1.07 and 1.01; d 96 window(255,0) 1.035
// and 1.03.
constexpr double kPairSteps = 1.2, kNarrowPairSteps = 1.15, kMaskedPairSteps = 1.52;
// Pairs that stay: 1.12 (d 64, 1k), 1.06 (causal 4k) and 1.03 (causal 16k) of the speed of those
// that do not, at d 128 1.03 to 1.05 at 1k and 0.99 to 1.00 from 4k on, at d 96 0.90 at 4k and
// under a causal mask 1.04.
constexpr double kMostPersistentKeys = 2048;
// From more keys on sums come as they come where bits may differ: d 128 at 16384, 1.03 of the speed
// and work per joule in order; d 64 1.00, and 4096 0.93 to 1.00. By pairs that stay without a mask,
// 1.00 and 1.02 of those that do not at d 128 (causal 1.00 and 0.99), and at d 64, 1.00 and 1.02 of
// order (causal 1.00 and 1.01 to 1.02).
constexpr std::int64_t kMostOrderedKeys = 8192;

// Above so many keys and queries sums come as they come, and a warp zeroes and rounds them, in
// pairs that stay. Of the speed and work per joule of order (to 8192 keys) and of sums zeroed and
// rounded by kernels: d 128 full 4096 1.05 and 1.04 to 1.05, 8192 1.03 to 1.08 and 1.04, 16384 1.01
// and 1.02, causal 4096 and 8192 1.02 and 1.02, 16384 1.00 and 0.99; d 96 full 4096 1.03 and 1.02
// to 1.03, causal 0.97 to 0.99 and 1.00. Not at 2048 keys (1.00 and 0.99), nor at d 64 (4096 1.01
// and 1.00, 16384 1.00 and 1.005). Under windows it is keys that a query sees: d 128 1023 0.955 and
// 0.955, 2047 1.01 and 1.01, 4095 1.02 to 1.045 and 1.015 to 1.02; d 96 1023 1.01 and 0.975, 4095
// 1.01 and 1.015; d 64 1023 1.01 and 1.035, 4095 1.00 and 0.99, but above 8192 keys, of sums zeroed
// and rounded by kernels, 1.02 to 1.065 and 1.02 to 1.04. In turn d 128 has 1.105 and 1.05 of these
// at 1023 of 16384 keys (1.07 and 1.04 so), d 64 1.06 and 1.04.
constexpr std::int64_t kMostTurnKeys = 2048;

// A warp rounds dq beside the tensor cores where that was measured to be faster: 1.02 times at d 64
// and 512 keys (causal 1.04, with early turns), 1.04 at causal 1024; at d 128 0.95 at 512, 1.03 at
// 1024, 1.02 to 1.03 at causal 4096. Not at 16384 (0.99). Between them not measured.
constexpr std::int64_t kRoundedKeys = 1024, kNarrowRoundedKeys = 512, kMostRoundedKeys = 8192;

// Turns cost a wide backward a quarter of its speed, so only deterministic problems take them.
// Pairs have, at d 192, 1.09 of the speed in bursts and of the work per joule of one block at 4096
// keys (causal 1.06 and 1.08), 1.12 and 1.11 at 16384, causal 1.02 and 1.00 at 1024 (1.06 of its
// steps). At d 256 1.01 and 1.04 at 1024 and 4096 (causal 0.99 and 1.01), 1.04 and 1.05 at 16384
// (causal 1.01 and 1.05), but causal 0.98 and 0.99 at 1024, 0.955 and 0.97 at 512 (1.11). In turn
// they have 1.25 and 1.18 of one block in turn at causal 1024, 1.10 and 1.05 at 512 (d 192 1.23 and
// 1.13 at causal 1024). Pairs that stay have 1.03 and 1.03 of those that do not at d 256 and 1024
// keys, 1.04 and 1.03 at d 192 and causal 1024, 1.00 to 1.01 of both at causal 4096; at d 256 and
// causal 1024 1.01 and 1.02 of one block.
constexpr double kMostWideStayingKeys = 1024;
constexpr double kWidePairSteps = 1.08, kWidestPairSteps = 1.03, kWideTurnPairSteps = 1.12;
// 1.11 at causal 512. Under windows, of what was planned without: d 192 511 1.125 and 1.10, 255
// (1.2 of the steps of one block) 1.05 and 1.01, causal 256 (1.2) 1.03 and 0.99; d 256 511
// (1.11) 1.02 and 1.01, 255 0.97 and 0.96.
constexpr double kHelpedPairSteps = 1.25, kWidestHelpedPairSteps = 1.15;
constexpr double kMostWidestHelpedKeys = 2048;
constexpr int kMostKeysUnhelped = 1024;
BackwardConfig config_of(const Problem& p, DqAccumulation dq, int cluster) {
  const int head_dim = sm90_head_dim(p.d);
  return {.target = Target::cuda_sm90,
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
}

// On average.
double seen_keys(const Problem& p) {
  return visible_pairs(p.mask, p.sq, p.sk) / static_cast<double>(p.sq);
}

// Where pairs wait for turns, those of later keys, which walk less of each query head, would have
// to wait for those of earlier ones at every head's end: by tile, four query heads each have 1.08
// to 1.385 of the speed and 1.02 to 1.25 of the work per joule at causal 512 to 2048 keys, d 192
// to 16384 keys 1.19 to 1.31 and 1.10 to 1.23.
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

// Of d and dv up to 128.
std::vector<BackwardConfig> narrow_candidates(const Problem& problem, const Limits& limits) {
  const double seen = seen_keys(problem);
  const bool full = problem.mask.is_full();
  const bool narrow = sm90_head_dim(problem.d) <= kGroupRows;
  const double most = !full ? kMaskedPairSteps : narrow ? kNarrowPairSteps : kPairSteps;
  const BackwardConfig block = config_of(problem, DqAccumulation::serialized, 1);
  const BackwardConfig pair = config_of(problem, DqAccumulation::serialized, 2);
  std::vector<BackwardConfig> legal = steps_of_pairs(problem, kKeys) <= most
                                          ? legal_of({pair, block}, problem, limits)
                                          : legal_of({block, pair}, problem, limits);
  if (legal.empty()) return legal;

  BackwardConfig best = legal.front();
  const auto prefer = [&](const auto& change) {
    BackwardConfig changed = best;
    change(changed);
    if (validate_sm90(changed, problem, limits)) best = changed;
  };
  const bool causal = problem.mask == kCausal, windowed = !full && !causal;
  const bool medium = sm90_head_dim(problem.d) <= kMediumDim;
  if (narrow || seen <= kMostPersistentKeys || (medium && !full)) {
    prefer([](BackwardConfig& c) { c.persistent = true; });
  }
  if (problem.sk >= (narrow ? kNarrowRoundedKeys : kRoundedKeys) &&
      (windowed || problem.sk <= kMostRoundedKeys)) {
    prefer([](BackwardConfig& c) { c.dq = DqAccumulation::serialized_fused; });
  }
  if (best.cluster > 1 && !windowed && problem.sk > kMostOrderedKeys) {
    prefer([&](BackwardConfig& c) {
      c.dq = DqAccumulation::atomic;
      c.persistent = full || narrow;
    });
  }
  const bool long_sums = problem.sk > kMostTurnKeys && problem.sq > kMostTurnKeys;
  const bool short_keys = problem.sk <= kMostOrderedKeys;
  const bool helped = causal ? short_keys : narrow ? windowed && !short_keys : seen > kMostTurnKeys;
  const auto add_as_they_come = [](BackwardConfig& c) {
    c.dq = DqAccumulation::atomic_fused;
    c.persistent = true;
  };
  if (best.cluster > 1 && long_sums && helped) prefer(add_as_they_come);
  if (!full) prefer([](BackwardConfig& c) { c.masked = true; });
  // Of the speed and work per joule of whole works: d 64 at 4096 keys 1.01 and 1.01, at 16384 1.01
  // to 1.02 and 1.02; two heads of 4096 at d 128 1.62 and 1.14.
  const BackwardConfig whole = best;
  prefer([&](BackwardConfig& c) {
    c.split_q = true;
    if (!full) c.persistent = true;
    if (select_split_q(problem, c, limits.sm_count).parts == 1) c = whole;
  });
  // Works that all begin at once would wait for each other's turns. Sums as they come have, of the
  // speed and work per joule in turn at 1024 and 2048 keys, in parts without a mask 0.99 to 1.42
  // and 1.00 to 1.09, causal 1.02 to 1.21 and 1.00 to 1.085, whole without a mask 1.03 to 1.065
  // and 1.02 to 1.055; whole under a causal one 0.925 to 0.98 and 0.97 to 0.99.
  const bool one_round = full && works_of(problem, best) <= limits.sm_count / best.cluster;
  const bool long_round = std::min(problem.sq, problem.sk) >= kRoundedKeys;
  if (one_round ? long_round : best.split_q && !full) prefer(add_as_they_come);
  best.gqa_inner_loop = takes_gqa_inner_loop(best) && later_keys_walk_less(problem);
  if (whole != legal.front()) legal.insert(legal.begin(), whole);
  if (best != legal.front()) legal.insert(legal.begin(), best);
  return legal;
}

// Are sums as they come zeroed and rounded in the same grid, by pairs that stay? Of the speed and
// work per joule of what was planned without (0019): d 192 causal 512 keys 1.10 and 1.10 (of one
// block), 1024 1.06 and 1.06, 4096 1.03 and 1.00, 16384 1.00 and 1.01, without a mask 1024 0.99 and
// 1.00, 2048 1.03 and 1.04, 4096 1.04 and 1.02, 16384 0.99 and 1.005; d 256 causal 512 1.05 and
// 1.035, 1024 1.07 and 1.03, 2048 1.05 and 1.04, without a mask 1024 1.04 and 1.02, 2048 1.02 and
// 1.025; causal 4096 1.00 and 1.01, where pairs that do not stay hold columns. Windows: d 192 1023
// of 8192 keys 1.10 and 1.035, of 65536 1.045 and 1.01, 4095 1.035 and 1.02; d 256 1023 1.04 and
// 1.02, 2047 1.04 and 1.05, 4095 0.985 and 0.975.
bool helps_wide(const Problem& p) {
  const bool full = p.mask.is_full();
  if (p.deterministic) return false;
  if (sm90_head_dim(std::max(p.d, p.dv)) > kWideDim) return seen_keys(p) <= kMostWidestHelpedKeys;
  return !full || (p.sk > kMostKeysUnhelped && p.sk <= kMostOrderedKeys);
}

// Of d or dv from 129 on.
std::vector<BackwardConfig> wide_candidates(const Problem& problem, const Limits& limits) {
  auto legal = legal_of(
      {config_of(problem, DqAccumulation::atomic, 2), config_of(problem, DqAccumulation::atomic, 1),
       config_of(problem, DqAccumulation::serialized, 2),
       config_of(problem, DqAccumulation::serialized, 1)},
      problem, limits);
  const int widest = sm90_head_dim(std::max(problem.d, problem.dv));
  const bool stays = (problem.mask.is_full() || problem.mask == kCausal) &&
                     seen_keys(problem) <= kMostWideStayingKeys;
  const bool helped = helps_wide(problem);
  const double most = problem.deterministic ? kWideTurnPairSteps
                      : helped ? (widest > kWideDim ? kWidestHelpedPairSteps : kHelpedPairSteps)
                      : widest > kWideDim && !stays ? kWidestPairSteps
                                                    : kWidePairSteps;
  if (steps_of_pairs(problem, kWideKeys) > most) {
    std::stable_partition(legal.begin(), legal.end(),
                          [](const BackwardConfig& c) { return c.cluster == 1; });
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

// Of packed sequences: sums as they come where bits may differ.
std::vector<BackwardConfig> varlen_candidates(const Problem& problem, const Limits& limits) {
  const auto dq = problem.deterministic ? DqAccumulation::serialized : DqAccumulation::atomic;
  const auto other = DqAccumulation::serialized;
  BackwardConfig pair = config_of(problem, dq, 2);
  pair.masked = !problem.mask.is_full() && !is_wide(problem);
  std::vector<BackwardConfig> legal =
      legal_of({pair, config_of(problem, dq, 1), config_of(problem, other, 1)}, problem, limits);
  // Of the speed of one block, causal: d 128 26 sequences of 16 to 2048 rows 1.03, 128 of 512 1.03,
  // one of 8192 among short ones 1.11; d 64 with four query heads a key head 1.03, with one 0.91.
  // Lengths are not known: below so many on average pairs would walk what few queries see.
  constexpr std::int64_t kLeastMean = 192;
  const bool narrow_heads = sm90_head_dim(problem.d) <= kGroupRows && problem.hq == problem.hk;
  if (problem.total_k < kLeastMean * problem.b || narrow_heads) {
    std::stable_partition(legal.begin(), legal.end(),
                          [](const BackwardConfig& c) { return c.cluster == 1; });
  }
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
// than a separate kernel: the head dim, and how many thread blocks it takes for those of one head,
// which start behind one another, not to be all there is to do. 0: nowhere.
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
  return {.target = sm75 ? Target::cuda_sm75 : Target::cuda_sm80,
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

std::vector<BackwardConfig> portable_candidates(const Problem& p, const Limits& limits) {
  std::vector<BackwardConfig> legal, later;
  for (const SerializedTile& tile : kSerializedTiles) {
    const BackwardConfig config = config_of(p, tile, limits);
    if (!validate_portable(config, p, limits)) continue;
    (serialized_pays(tile, config, p) ? legal : later).push_back(config);
  }
  const bool wide = bytes_of(p.dtype) == 4;
  const std::span<const QueryTile> query_tiles =
      wide ? std::span<const QueryTile>(kWideQueryTiles) : kQueryTiles;
  const std::span<const KeyTile> key_tiles =
      wide ? std::span<const KeyTile>(kWideKeyTiles) : kKeyTiles;
  for (const QueryTile& queries : query_tiles) {
    for (const KeyTile& keys : key_tiles) {
      const BackwardConfig config = config_of(p, keys, queries, limits);
      if (validate_portable(config, p, limits)) legal.push_back(config);
    }
  }
  legal.insert(legal.end(), later.begin(), later.end());
  return legal;
}

}  // namespace

std::vector<BackwardConfig> sm90_backward_candidates(const Problem& problem, const Limits& limits) {
  if (problem.packed() && !kPackedOnSm90) return {};
  if (problem.packed()) return varlen_candidates(problem, limits);
  return is_wide(problem) ? wide_candidates(problem, limits) : narrow_candidates(problem, limits);
}

std::vector<BackwardConfig> fp32x3_backward_candidates(const Problem& p, const Limits& limits) {
  std::vector<BackwardConfig> legal;
  if (p.packed()) return legal;
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
  return legal.empty() ? config_of(problem, kKeyTiles[0], kQueryTiles[0], limits) : legal[0];
}

Verdict sm90_backward_fits(const Problem& p, const Limits& limits) {
  if (p.dtype == DType::fp32) return fp32x3_fits(p, limits);
  if (!sm90_backward_candidates(p, limits).empty()) return Verdict::yes();
  if (p.packed() && !kPackedOnSm90) return Verdict::no(kNoPackedOnSm90);
  const auto dq =
      is_wide(p) && !p.deterministic ? DqAccumulation::atomic : DqAccumulation::serialized;
  return validate_sm90(config_of(p, dq, 1), p, limits);
}

Verdict fp32x3_backward_fits(const Problem& p, const Limits& limits) {
  if (!fp32x3_backward_candidates(p, limits).empty()) return Verdict::yes();
  return validate_fp32x3(config_of(p, Fp32x3Tile{64, 1}), p, limits);
}

}  // namespace dfa
