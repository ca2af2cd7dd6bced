#include <algorithm>
#include <vector>

#include "plan/prices_backward.h"
#include "plan/schedule.h"
#include "plan/select.h"
#include "plan/steps.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
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
  const bool makes_logits = p.softcap != 0 || p.alibi || p.bias;
  if (std::max(p.d, p.dv) > kMaxDim || makes_logits) return true;
  return (p.dropout > 0 || p.has_text()) && p.d <= kGroupRows && p.dv > kGroupRows;
}

BackwardConfig config_of(const Problem& p, DqAccumulation dq, int cluster) {
  const int head_dim = sm90_head_dim(p.d);
  BackwardConfig config{.target = Target::cuda_sm90,
                        .element = p.dtype,
                        .head_dim = head_dim,
                        .value_dim = sm90_head_dim(p.dv),
                        .block_q = head_dim > kGroupRows || is_wide(p) ? 64 : 128,
                        .block_k = is_wide(p) ? kWideKeys : kKeys,
                        .warps = kWarps,
                        .stages = kStages,
                        .ctas = 1,
                        .dq = dq,
                        .cluster = cluster,
                        .varlen = p.packed(),
                        .ranges = !p.mask.is_window(),
                        .dropout = p.dropout > 0,
                        .blocks = p.blocks.has_value()};
  set_logits(config, p);
  return config;
}

// Of heads above kMostColumns.
BackwardConfig sliced_config_of(const Problem& p) {
  BackwardConfig config = config_of(p, DqAccumulation::separate, 1);
  config.head_dim = sm90_sliced_dim(p.d);
  config.value_dim = sm90_sliced_dim(p.dv);
  config.block_q = config.block_k = kGroupRows;
  return config;
}

// On average.
double seen_keys(const Problem& p) {
  return visible_pairs(p.mask, p.sq, p.sk) / static_cast<double>(p.sq);
}

// Where pairs wait for the dq semaphore, those of later keys, which walk less of each query head,
// would have to wait for those of earlier ones at every head's end.
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
  // Dropout leaves no registers for rounding beside, and in turn pairs would wait for each other:
  // 1.03 to 1.09 times the rate (results/studies/hopper_variants_h200.txt).
  if (best.config().cluster > 1 && p.dropout > 0 && kind.narrow && kind.causal) {
    best.change([](BackwardConfig& c) { c.dq = DqAccumulation::atomic; });
  }
  const bool long_sums = p.sk > kMostTurnKeys && p.sq > kMostTurnKeys;
  const bool helped = kind.causal   ? short_keys
                      : kind.narrow ? kind.windowed && !short_keys
                                    : kind.seen > kMostTurnKeys;
  if (best.config().cluster > 1 && long_sums && helped) best.add_as_they_come();
}

// Work tiles of the last round, or few, in parts where that ends sooner. Few that all begin at once
// would wait for each other's semaphores.
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
  if (p.deterministic || sm90_head_dim(p.d) <= kGroupRows) return false;
  if (sm90_head_dim(std::max(p.d, p.dv)) > kWideDim) return seen_keys(p) <= kMostWidestHelpedKeys;
  return !p.mask.is_full() || (p.sk > kMostKeysUnhelped && p.sk <= kMostOrderedKeys);
}

double most_wide_pair_steps(const Problem& p, bool helped, bool persistent) {
  const bool widest = sm90_head_dim(std::max(p.d, p.dv)) > kWideDim;
  if (p.deterministic) return kWideSerializedPairSteps;
  if (helped) return widest ? kWidestHelpedPairSteps : kHelpedPairSteps;
  return widest && !persistent ? kWidestPairSteps : kWidePairSteps;
}

// With sums as they come, pairs above 192 columns have 0.97 to 0.99 of the rate of single blocks
// (results/studies/hopper_texts_h200.txt).
bool pairs_wait_for_texts(const Problem& p) {
  return p.has_text() && !p.deterministic && std::max(p.d, p.dv) > kWideDim;
}

// Of d or dv from 129 on.
std::vector<BackwardConfig> wide_candidates(const Problem& problem, const Limits& limits) {
  auto legal = legal_of(
      {config_of(problem, DqAccumulation::atomic, 2), config_of(problem, DqAccumulation::atomic, 1),
       config_of(problem, DqAccumulation::serialized, 2),
       config_of(problem, DqAccumulation::serialized, 1)},
      problem, limits);
  const bool persistent = (problem.mask.is_full() || problem.mask == kCausal) &&
                          seen_keys(problem) <= kMostWidePersistentKeys;
  const bool helped = helps_wide(problem);
  if (steps_of_pairs(problem, kWideKeys) > most_wide_pair_steps(problem, helped, persistent) ||
      pairs_wait_for_texts(problem)) {
    take_pairs_last(legal);
  }
  if (legal.empty()) return legal;
  Preferred preferred(legal.front(), problem, limits);
  preferred.change([&](BackwardConfig& c) {
    if (c.dq != DqAccumulation::atomic || c.cluster == 1) return;
    if (helped) c.dq = DqAccumulation::atomic_fused;
    c.persistent = helped || persistent;
  });
  BackwardConfig best = preferred.config();
  best.gqa_inner_loop = takes_gqa_inner_loop(best) && later_keys_walk_less(problem);
  if (best != legal.front()) legal.insert(legal.begin(), best);
  return legal;
}

// Of packed sequences, whose lengths are not known, and of chunks and prefixes: sums as they come
// where bits may differ.
std::vector<BackwardConfig> moving_candidates(const Problem& problem, const Limits& limits) {
  const auto dq = problem.deterministic ? DqAccumulation::serialized : DqAccumulation::atomic;
  BackwardConfig pair = config_of(problem, dq, 2);
  pair.masked = !problem.mask.is_full() && !is_wide(problem);
  if (problem.has_text() && sm90_head_dim(problem.d) <= kGroupRows) pair.masked = false;
  std::vector<BackwardConfig> legal =
      legal_of({pair, config_of(problem, dq, 1), config_of(problem, DqAccumulation::serialized, 1)},
               problem, limits);
  const bool narrow_heads = sm90_head_dim(problem.d) <= kGroupRows && problem.hq == problem.hk;
  const bool few_keys = problem.k_rows() < kLeastMeanKeys * (problem.packed() ? problem.b : 1);
  if (few_keys || narrow_heads || pairs_wait_for_texts(problem)) take_pairs_last(legal);
  return legal;
}

// Of lists of blocks: sums as they come, by single blocks.
std::vector<BackwardConfig> listed_candidates(const Problem& problem, const Limits& limits) {
  return legal_of({config_of(problem, DqAccumulation::atomic, 1)}, problem, limits);
}

}  // namespace

std::vector<BackwardConfig> sm90_backward_candidates(const Problem& problem, const Limits& limits) {
  if (std::max(problem.d, problem.dv) > kMostColumns) {
    return legal_of({sliced_config_of(problem)}, problem, limits);
  }
  if (problem.blocks) return listed_candidates(problem, limits);
  if (problem.packed() || !problem.mask.is_window()) return moving_candidates(problem, limits);
  return is_wide(problem) ? wide_candidates(problem, limits) : narrow_candidates(problem, limits);
}

Verdict sm90_backward_fits(const Problem& p, const Limits& limits) {
  if (p.dtype == DType::fp32) return fp32x3_fits(p, limits);
  if (!sm90_backward_candidates(p, limits).empty()) return Verdict::yes();
  const auto dq = p.blocks || (is_wide(p) && !p.deterministic) ? DqAccumulation::atomic
                                                               : DqAccumulation::serialized;
  const bool sliced = std::max(p.d, p.dv) > kMostColumns;
  return validate_sm90(sliced ? sliced_config_of(p) : config_of(p, dq, 1), p, limits);
}

}  // namespace dfa
