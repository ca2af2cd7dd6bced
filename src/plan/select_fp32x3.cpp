#include <algorithm>

#include "plan/select.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"

// Which forward of Hopper in fp32.
namespace dfa {
namespace {

// In the order to try them.
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

}  // namespace

std::vector<ForwardConfig> fp32x3_candidates(const Problem& p, const Limits& limits) {
  std::vector<ForwardConfig> legal;
  if (p.packed() || !p.plain() || std::max(p.d, p.dv) <= kPortableDim) return legal;
  for (const Fp32x3Tile& tile : kFp32x3Tiles) {
    const ForwardConfig config = config_of(p, tile);
    if (validate_fp32x3(config, p, limits)) legal.push_back(config);
  }
  return legal;
}

Verdict fp32x3_fits(const Problem& p, const Limits& limits) {
  if (const Verdict plain = validate_plain_logits(p); !plain) return plain;
  if (p.packed()) return Verdict::no("cuda_sm90 in fp32 takes no packed sequences");
  if (fp32x3_candidates(p, limits).empty()) {
    const Verdict verdict = validate_fp32x3(config_of(p, Fp32x3Tile{64, 64, 1}), p, limits);
    return verdict ? Verdict::no("cuda_sm90 would pad heads of up to 32 to 64") : verdict;
  }
  return fp32x3_backward_fits(p, limits);
}

}  // namespace dfa
