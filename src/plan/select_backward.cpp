#include "plan/select_backward.h"

#include <string>
#include <vector>

#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"

namespace dfa {
namespace {

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
          .warps = 8,
          .stages = tile.stages,
          .ctas = 1,
          .dq = DqAccumulation::serialized};
}

}  // namespace

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
  const std::vector<BackwardConfig> portable = portable_backward_candidates(problem, limits);
  legal.insert(legal.end(), portable.begin(), portable.end());
  const std::vector<BackwardConfig> fp32x3 = fp32x3_backward_candidates(problem, limits);
  const bool first = legal.empty() || fp32x3_fits(problem, limits);  // as in the forward
  legal.insert(legal.begin() + (first ? 0 : 1), fp32x3.begin(), fp32x3.end());
  return legal;
}

BackwardConfig select_backward(const Problem& problem, const Limits& limits) {
  const std::vector<BackwardConfig> legal = gpu_candidates<BackwardConfig>(problem, limits);
  if (!legal.empty()) return legal[0];
  return first_portable_backward(problem, limits);
}

namespace {

bool has_backward_by(Problem p, const Limits& limits, int block_q, int block_k) {
  p.blocks->block_q = block_q;
  p.blocks->block_k = block_k;
  return !portable_backward_candidates(p, limits).empty();
}

// Tiles divide the sides of blocks, so that what fits one fits its multiples: the least, by turns.
std::string sides_that_fit(const Problem& p, const Limits& limits) {
  constexpr int kMost = 128, kLeast = 16;
  int block_q = kLeast, block_k = kLeast;
  while (block_q < kMost && !has_backward_by(p, limits, block_q, kMost)) block_q *= 2;
  while (block_k < kMost && !has_backward_by(p, limits, block_q, block_k)) block_k *= 2;
  if (!has_backward_by(p, limits, block_q, block_k)) return "";
  return "; accepted: lists of blocks with sides in multiples of " + std::to_string(block_q) +
         " queries and " + std::to_string(block_k) + " keys";
}

}  // namespace

Verdict backward_fits(const Problem& p, const Limits& limits) {
  const Verdict fits = validate_config(select_backward(p, limits), p, limits);
  if (fits || !p.blocks) return fits;
  const std::string sides = sides_that_fit(p, limits);
  if (sides.empty()) return fits;
  return Verdict::no("blocks of " + std::to_string(p.blocks->block_q) + " queries and " +
                     std::to_string(p.blocks->block_k) +
                     " keys have no backward with d=" + std::to_string(p.d) +
                     ", dv=" + std::to_string(p.dv) + ": " + fits.reason + sides);
}

Verdict fp32x3_backward_fits(const Problem& p, const Limits& limits) {
  if (!fp32x3_backward_candidates(p, limits).empty()) return Verdict::yes();
  return validate_fp32x3(config_of(p, Fp32x3Tile{64, 1}), p, limits);
}

}  // namespace dfa
