#include <algorithm>
#include <string>

#include "spec/flops.h"
#include "spec/gpu_legality.h"
#include "spec/sm90_legality.h"
#include "spec/sm90_split_legality.h"

namespace dfa {
namespace {

constexpr int kMaxStages = 4;
constexpr int kWarps = 8;
// Keys of a block: a warpgroup has dk and dv of 64, up to 128 columns each, or one of the two.
constexpr int kKeys = 2 * kGroupRows;
constexpr int kWideKeys = kGroupRows;
constexpr int kMaxDim = 128;
constexpr int kMostHeldDim = 96;  // above, registers do not last for 64 columns of k and v
constexpr int kWideDim = 192;     // above, registers are fewer yet
constexpr int kMaxTurn = 128;     // rows are padded to that

std::string number(long long value) { return std::to_string(value); }

Verdict yes() { return Verdict::yes(); }

bool is_wide(const BackwardConfig& c) { return c.head_dim > kMaxDim || c.value_dim > kMaxDim; }

// The sums of dq have as many columns as the problem's dq is padded to elsewhere too, and those of
// a wide one at least as many as two warpgroups share.
Verdict check_dims(const BackwardConfig& c, const Problem& p) {
  if (is_wide(c) && c.head_dim <= kGroupRows) {
    return Verdict::no("cuda_sm90's backward of dv=" + number(p.dv) + " has d from 65 on, not " +
                       number(p.d));
  }
  if (c.head_dim == gpu_head_dim(p.d)) return yes();
  return Verdict::no("cuda_sm90's backward would pad d=" + number(p.d) + " to " +
                     number(c.head_dim));
}

// A warpgroup has 64 columns of dq, or half of the queries where there are no more columns.
Verdict check_shape(const BackwardConfig& c) {
  const int keys = is_wide(c) ? kWideKeys : kKeys;
  if (c.block_k != keys || c.warps != kWarps || c.ctas != 1) {
    return Verdict::no("block_k=" + number(c.block_k) + ", warps=" + number(c.warps) + ", ctas=" +
                       number(c.ctas) + "; cuda_sm90 takes " + number(keys) + ", 8 and 1");
  }
  const int queries = c.head_dim > kGroupRows ? 64 : 128;
  if (c.block_q != queries) {
    return Verdict::no("block_q=" + number(c.block_q) + "; head_dim=" + number(c.head_dim) +
                       " takes " + number(queries) + " of cuda_sm90");
  }
  if (c.stages < 2 || c.stages > kMaxStages) {
    return Verdict::no("stages=" + number(c.stages) + "; 2 to " + number(kMaxStages));
  }
  return yes();
}

// Of a pair each block makes dq of every second tile or, with dq_group, of half of each.
Verdict check_pairs(const BackwardConfig& c) {
  if (c.cluster == 1) return yes();
  if (c.cluster != 2) return Verdict::no("cluster=" + number(c.cluster) + "; 1 or 2");
  if (is_wide(c)) {
    const bool in_turn = c.dq == DqSum::ordered;
    if (c.early_turns == in_turn && c.dq_block_q == c.block_q && c.stages == 2 &&
        !(c.persistent && in_turn) && !c.skips_hidden && !c.nested_keys) {
      return yes();
    }
    return Verdict::no("cluster=2 with head_dim or value_dim above " + number(kMaxDim) +
                       " takes early_turns=" + (in_turn ? "true" : "false") +
                       ", turns of 64 rows, stages=2, persistent=true with dq=unordered alone, " +
                       "skips_hidden=false and nested_keys=false");
  }
  if (c.head_dim <= kGroupRows && c.value_dim > kGroupRows) {
    return Verdict::no("cluster=2 of a backward with head_dim up to " + number(kGroupRows) +
                       " has value_dim up to " + number(kGroupRows) + ", not " +
                       number(c.value_dim));
  }
  if (c.dq == DqSum::ordered && !c.early_turns && !c.dq_group) {
    return Verdict::no("cluster=2 with dq=ordered takes early_turns=true");
  }
  if (c.dq_block_q == c.block_q) return yes();
  return Verdict::no("cluster=2 takes turns of block_q=" + number(c.block_q) + " rows, not " +
                     number(c.dq_block_q));
}

// There is room for half of a share, and where v is held in registers for all of it in v's place.
// At head_dim 96 the second warpgroup has no whole share.
bool takes_bulk_dq(const BackwardConfig& c) {
  const bool room = c.head_dim == kGroupRows ? c.keys_in_registers : c.head_dim == kMaxDim;
  return room && c.cluster == 2 && !is_wide(c) && !c.dq_group && c.dq == DqSum::unordered;
}

// For the columns of k and v that the kernels hold (sm90_held_k), without a spill.
bool has_registers_for_keys(const BackwardConfig& c) {
  const int widest = std::max(c.head_dim, c.value_dim);
  if (is_wide(c)) return c.cluster == 2 && (widest <= kWideDim || !c.persistent);
  return !c.dq_group && widest <= (c.cluster == 2 ? kMostHeldDim : kGroupRows);
}

bool takes_heads_by_tile(const BackwardConfig& c) {
  const bool fits = !is_wide(c) || (c.head_dim <= kWideDim && c.value_dim <= c.head_dim);
  return c.cluster == 2 && c.dq == DqSum::ordered && !c.dq_group && fits;
}

Verdict check_dq(const BackwardConfig& c, const Problem& p) {
  if (c.dq == DqSum::recomputed) {
    return Verdict::no("dq=recomputed is of cuda_sm80; cuda_sm90 takes ordered, unordered");
  }
  if (c.dq == DqSum::unordered && p.deterministic) {
    return Verdict::no(
        "dq=unordered has other bits in every run; deterministic problems take ordered");
  }
  if (c.dq == DqSum::unordered && c.value_dim > c.head_dim && !is_wide(c)) {
    return Verdict::no("dq=unordered of cuda_sm90 has value_dim up to head_dim: registers spill");
  }
  if (c.dq_group && (c.head_dim > kGroupRows || c.value_dim > kGroupRows)) {
    return Verdict::no("dq_group=true has head_dim and value_dim up to " + number(kGroupRows) +
                       ", not " + number(c.head_dim) + " and " + number(c.value_dim));
  }
  if (c.keys_in_registers && !has_registers_for_keys(c)) {
    return Verdict::no(
        "keys_in_registers=true has dq_group=false and head_dim and value_dim up to " +
        number(kGroupRows) + ", with cluster=2 up to " + number(kMostHeldDim) +
        ", or one of both above " + number(kMaxDim) + " (above " + number(kWideDim) +
        " with persistent=false)");
  }
  if (c.early_turns && (c.dq != DqSum::ordered || c.dq_group)) {
    return Verdict::no("early_turns=true is of dq=ordered with dq_group=false");
  }
  const bool stays_alone = c.persistent && !is_wide(c) && !c.rounds_dq;
  if (c.zeroes_dq && (c.dq != DqSum::unordered || c.dq_group || stays_alone)) {
    return Verdict::no(
        "zeroes_dq=true is of dq=unordered with dq_group=false, and persistent=false, "
        "rounds_dq=true or head_dim or value_dim above " +
        number(kMaxDim));
  }
  const bool helped = c.zeroes_dq && c.persistent;
  const bool rounds =
      is_wide(c) ? helped
                 : (c.dq == DqSum::ordered || helped) && !c.dq_group && c.value_dim <= c.head_dim;
  if (c.rounds_dq && !rounds) {
    return Verdict::no(
        "rounds_dq=true is of dq=ordered, or dq=unordered with zeroes_dq=true and "
        "persistent=true, dq_group=false, value_dim up to head_dim, both up to " +
        number(kMaxDim) + "; above of the second alone");
  }
  if (const Verdict pairs = check_pairs(c); !pairs) return pairs;
  if (c.persistent && (c.cluster != 2 || c.dq_group || c.stages != 2)) {
    return Verdict::no("persistent=true is of cluster=2, stages=2, dq_group=false");
  }
  if (c.skips_hidden && (c.cluster != 2 || c.dq_group)) {
    return Verdict::no("skips_hidden=true is of cluster=2, dq_group=false");
  }
  if (c.nested_keys && (c.cluster != 2 || c.dq_group)) {
    return Verdict::no("nested_keys=true is of cluster=2, dq_group=false");
  }
  if (c.bulk_dq && !takes_bulk_dq(c)) {
    return Verdict::no(
        "bulk_dq=true is of cluster=2, dq=unordered, dq_group=false, and head_dim 64 with "
        "keys_in_registers=true or 128");
  }
  if (c.parts_last && (!c.persistent || is_wide(c) || c.bulk_dq || p.mask.left >= 0)) {
    return Verdict::no(
        "parts_last=true is of persistent=true, bulk_dq=false, head_dim and value_dim up to " +
        number(kMaxDim) + ", without a left side of a mask");
  }
  if (c.heads_by_tile && !takes_heads_by_tile(c)) {
    return Verdict::no(
        "heads_by_tile=true is of cluster=2, dq=ordered, dq_group=false, head_dim and value_dim "
        "up to " +
        number(kMaxDim) + ", or head_dim up to " + number(kWideDim) +
        " and value_dim up to head_dim");
  }
  if (c.dq_block_q % c.block_q == 0 && c.dq_block_q <= kMaxTurn) return yes();
  return Verdict::no("dq_block_q=" + number(c.dq_block_q) + ", the rows of a turn; a multiple of " +
                     "block_q=" + number(c.block_q) + " up to " + number(kMaxTurn));
}

// Tiles in the order to try them (measured: docs/design/0019).
struct Tile {
  int stages, turn;
  DqSum dq = DqSum::ordered;
  bool dq_group = false, early_turns = false;
  int cluster = 1;
};

// Turns of 64 rows were the fastest where a tile has 64 queries. Sums as they come are not faster.
constexpr Tile kTiles[] = {{2, 64}, {2, 128}, {3, 64}, {3, 128}};
// Halves what blocks read and add up beside the tensor cores. What it walks more than one block
// (steps_of_pairs) costs: 1.12 of its speed at d 128 and 512 keys, 0.92 at 384 (1.33 of its steps);
// 1.16 at d 64 and 256 keys. Under a mask half of that is skipped: d 128 window(511,0) 1.06 of the
// speed and 1.07 of the work per joule, window(255,0) 1.03 and 1.04 (1.33), window(64,64) 1.015 and
// 1.01 (1.5), causal 256 1.065 and 1.055 (1.33), 384 0.99 and 0.995 (1.67); d 64 1.06
// and 1.05, 1.00 and 1.00, 1.05 and 1.08, causal 256 1.07 and 1.01; d 96 window(255,0) 1.035
// and 1.03.
constexpr Tile kPairTile = {.stages = 2, .turn = 64, .early_turns = true, .cluster = 2};
constexpr Tile kNarrowPairTile = {.stages = 2, .turn = 128, .early_turns = true, .cluster = 2};
constexpr double kPairSteps = 1.2, kNarrowPairSteps = 1.15, kMaskedPairSteps = 1.52;
// Of d and dv up to 64, by name: where nothing is masked 1.02 times as fast as pairs in bursts at
// 4096 keys and 1.00 at 16384, with 0.97 and 1.00 of their work per joule; slower under a mask.
constexpr Tile kGroupTile = {.stages = 3, .turn = 128, .dq_group = true};
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
constexpr Tile kWideTiles[] = {{.stages = 2, .turn = 64, .dq = DqSum::unordered, .cluster = 2},
                               {.stages = 2, .turn = 64, .dq = DqSum::unordered},
                               {.stages = 2, .turn = 64, .early_turns = true, .cluster = 2},
                               {.stages = 2, .turn = 64, .early_turns = true},
                               {2, 64},
                               {3, 64}};

BackwardConfig config_of(const Problem& p, const Tile& tile) {
  const int head_dim = sm90_head_dim(p.d);
  const int block_q = head_dim > kGroupRows ? 64 : 128;
  return {.target = Target::cuda_sm90,
          .element = p.dtype,
          .head_dim = head_dim,
          .value_dim = sm90_head_dim(p.dv),
          .block_q = block_q,
          .block_k = kKeys,
          .warps = kWarps,
          .stages = tile.stages,
          .ctas = 1,
          .dq = tile.dq,
          .dq_block_q = tile.turn,
          .dq_group = tile.dq_group,
          .early_turns = tile.early_turns,
          .cluster = tile.cluster};
}

BackwardConfig wide_config_of(const Problem& p, const Tile& tile) {
  BackwardConfig config = config_of(p, tile);
  config.block_k = kWideKeys;
  return config;
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

template <std::size_t kCount>
std::vector<BackwardConfig> legal_of(const Tile (&tiles)[kCount],
                                     BackwardConfig (*config_of)(const Problem&, const Tile&),
                                     const Problem& problem, const Limits& limits) {
  std::vector<BackwardConfig> legal;
  for (const Tile& tile : tiles) {
    const BackwardConfig config = config_of(problem, tile);
    if (check_sm90(config, problem, limits)) legal.push_back(config);
  }
  return legal;
}

}  // namespace

Verdict check_sm90(const BackwardConfig& config, const Problem& problem, const Limits& limits) {
  for (const Verdict& verdict :
       {check_sm90_problem(config.element, config.head_dim, config.value_dim, problem, limits),
        check_dims(config, problem), check_shape(config), check_dq(config, problem)}) {
    if (!verdict) return verdict;
  }
  if (config.smem_bytes() <= limits.smem_bytes) return yes();
  return Verdict::no("the tiles take " + number(config.smem_bytes()) +
                     " bytes of shared memory but a thread block has " + number(limits.smem_bytes));
}

std::vector<BackwardConfig> sm90_backward_candidates(const Problem& problem, const Limits& limits) {
  std::vector<BackwardConfig> legal = legal_of(kTiles, config_of, problem, limits);
  const double seen = seen_keys(problem);
  const auto put = [&](const Tile& tile, bool first) {
    const BackwardConfig config = config_of(problem, tile);
    if (!check_sm90(config, problem, limits)) return;
    legal.insert(first ? legal.begin() : legal.end(), config);
  };
  const bool full = problem.mask.is_full();
  const double steps = steps_of_pairs(problem, kKeys);
  put(kPairTile, steps <= (full ? kPairSteps : kMaskedPairSteps));
  put(kNarrowPairTile, steps <= (full ? kNarrowPairSteps : kMaskedPairSteps));
  put(kGroupTile, false);
  if (legal.empty()) return legal;

  BackwardConfig best = legal.front();
  const auto prefer = [&](const auto& change) {
    BackwardConfig changed = best;
    change(changed);
    if (check_sm90(changed, problem, limits)) best = changed;
  };
  const bool narrow = sm90_head_dim(problem.d) <= kGroupRows;
  prefer([](BackwardConfig& c) { c.keys_in_registers = true; });
  const bool causal = problem.mask == kCausal, windowed = !full && !causal;
  const bool medium = sm90_head_dim(problem.d) <= kMostHeldDim;
  if (narrow || seen <= kMostPersistentKeys || (medium && !full)) {
    prefer([](BackwardConfig& c) { c.persistent = true; });
  }
  if (problem.sk >= (narrow ? kNarrowRoundedKeys : kRoundedKeys) &&
      (windowed || problem.sk <= kMostRoundedKeys)) {
    prefer([&](BackwardConfig& c) {
      c.rounds_dq = true;
      if (narrow) c.early_turns = true;
    });
  }
  if (best.cluster > 1 && !windowed && problem.sk > kMostOrderedKeys) {
    prefer([&](BackwardConfig& c) {
      c.dq = DqSum::unordered;
      c.early_turns = false;
      c.persistent = full || narrow;
    });
  }
  const bool long_sums = problem.sk > kMostTurnKeys && problem.sq > kMostTurnKeys;
  const bool short_keys = problem.sk <= kMostOrderedKeys;
  const bool helped = causal ? short_keys : narrow ? windowed && !short_keys : seen > kMostTurnKeys;
  const auto add_as_they_come = [](BackwardConfig& c) {
    c.dq = DqSum::unordered;
    c.early_turns = false;
    c.zeroes_dq = c.rounds_dq = c.persistent = true;
  };
  if (best.cluster > 1 && long_sums && helped) prefer(add_as_they_come);
  if (!full) {
    prefer([](BackwardConfig& c) { c.skips_hidden = true; });
    prefer([](BackwardConfig& c) { c.nested_keys = true; });
  }
  // 1.01 to 1.015 of the speed and 1.01 to 1.02 of the work per joule at 16384 keys, 1.00 without a
  // mask; windows were not measured (0019).
  if (problem.mask == kCausal) prefer([](BackwardConfig& c) { c.bulk_dq = true; });
  // Of the speed and work per joule of whole works: d 64 at 4096 keys 1.01 and 1.01, at 16384 1.01
  // to 1.02 and 1.02; two heads of 4096 at d 128 1.62 and 1.14.
  const BackwardConfig whole = best;
  prefer([&](BackwardConfig& c) {
    c.parts_last = true;
    if (!full) {
      c.persistent = true;
      c.bulk_dq = false;
    }
    if (work_parts(problem, c, kMultiprocessors).parts == 1) c = whole;
  });
  // Works that all begin at once would wait for each other's turns. Sums as they come have, of the
  // speed and work per joule in turn at 1024 and 2048 keys, in parts without a mask 0.99 to 1.42
  // and 1.00 to 1.09, causal 1.02 to 1.21 and 1.00 to 1.085, whole without a mask 1.03 to 1.065
  // and 1.02 to 1.055; whole under a causal one 0.925 to 0.98 and 0.97 to 0.99.
  const bool one_round = full && works_of(problem, best) <= kMultiprocessors / best.cluster;
  const bool long_round = std::min(problem.sq, problem.sk) >= kRoundedKeys;
  if (one_round ? long_round : best.parts_last && !full) prefer(add_as_they_come);
  best.heads_by_tile = takes_heads_by_tile(best) && later_keys_walk_less(problem);
  if (whole != legal.front()) legal.insert(legal.begin(), whole);
  if (best != legal.front()) legal.insert(legal.begin(), best);
  return legal;
}

Verdict sm90_backward_fits(const Problem& p, const Limits& limits) {
  if (p.dtype == DType::fp32) return split_fits(p, limits);
  const bool wide = p.d > kMaxDim || p.dv > kMaxDim;
  const auto candidates =
      wide ? sm90_wide_candidates(p, limits) : sm90_backward_candidates(p, limits);
  if (!candidates.empty()) return yes();
  return check_sm90(wide ? wide_config_of(p, kWideTiles[0]) : config_of(p, kTiles[0]), p, limits);
}

namespace {

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

}  // namespace

std::vector<BackwardConfig> sm90_wide_candidates(const Problem& problem, const Limits& limits) {
  auto legal = legal_of(kWideTiles, wide_config_of, problem, limits);
  const int widest = sm90_head_dim(std::max(problem.d, problem.dv));
  const bool causal = problem.mask == kCausal;
  const bool stays =
      (problem.mask.is_full() || causal) && seen_keys(problem) <= kMostWideStayingKeys;
  const bool helped = helps_wide(problem);
  const double most = problem.deterministic ? kWideTurnPairSteps
                      : helped ? (widest > kWideDim ? kWidestHelpedPairSteps : kHelpedPairSteps)
                      : widest > kWideDim && !stays ? kWidestPairSteps
                                                    : kWidePairSteps;
  if (steps_of_pairs(problem, kWideKeys) > most) {
    std::stable_partition(legal.begin(), legal.end(),
                          [](const BackwardConfig& c) { return c.cluster == 1; });
  }
  // Under a causal mask 1.00 to 1.01 of the speed and 1.01 to 1.02 of the work per joule of sums
  // zeroed before, at d 192 and 256, 1024 and 4096 keys, where pairs stay 1.01 and 1.01; without
  // one 0.98 to 1.00 and 0.99 to 1.01. Windows were not measured.
  if (legal.empty()) return legal;
  BackwardConfig best = legal.front();
  if (best.dq == DqSum::unordered) {
    best.rounds_dq = helped && best.cluster == 2;
    best.persistent = best.rounds_dq || (stays && best.cluster == 2);
    best.zeroes_dq = best.rounds_dq || causal;
  }
  // Beside keys in shared memory alone, at 4096 keys: 1.02 to 1.03 of the speed and 1.00 to 1.03 of
  // the work per joule at d 192, 1.07 and 1.10 at d 256 (causal 1.04 and 1.02); 16 columns of each
  // where those pairs stay 0.99 and 1.00.
  best.keys_in_registers = has_registers_for_keys(best);
  best.heads_by_tile = takes_heads_by_tile(best) && later_keys_walk_less(problem);
  if (best != legal.front()) legal.insert(legal.begin(), best);
  return legal;
}

}  // namespace dfa
