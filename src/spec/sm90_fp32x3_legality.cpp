#include "spec/sm90_fp32x3_legality.h"

#include <algorithm>
#include <string>

#include "spec/gpu_legality.h"
#include "spec/sm90_legality.h"

namespace dfa {
namespace {

constexpr int kKeys[] = {64, 80, 96, 112, 128};  // columns of a product that ptx/wgmma.cuh has
constexpr int kMaxGroups = 3;
constexpr int kMaxStages = 4;
constexpr int kMaxDim = 128;
constexpr int kPortableDim = 32;  // heads up to here would be padded to twice their size and more
constexpr int kOthers = 32;

std::string number(long long value) { return std::to_string(value); }

Verdict yes() { return Verdict::yes(); }

Verdict check_dim(const char* field, int value, const char* name, std::int64_t dim) {
  const int wanted = sm90_head_dim(dim);
  if (wanted > kMaxDim || wanted == 0) {
    return Verdict::no("cuda_sm90 in fp32 has d and dv up to " + number(kMaxDim) + ", not " + name +
                       "=" + number(dim));
  }
  if (value == wanted) return yes();
  return Verdict::no(std::string(field) + "=" + number(value) + " but " + name + "=" + number(dim) +
                     " takes " + number(wanted) + " of cuda_sm90");
}

Verdict check_shape(const ForwardConfig& c) {
  const int groups = c.block_q / kGroupRows;
  if (c.block_q % kGroupRows != 0 || groups < 1 || groups > kMaxGroups || c.warps != 4 * groups ||
      c.ctas != 1) {
    return Verdict::no("block_q=" + number(c.block_q) + ", warps=" + number(c.warps) + ", ctas=" +
                       number(c.ctas) + "; 64, 128 or 192 queries, 4 warps for 64 of them, and 1");
  }
  if (std::find(std::begin(kKeys), std::end(kKeys), c.block_k) == std::end(kKeys)) {
    return Verdict::no("block_k=" + number(c.block_k) + "; 64 to 128 in steps of 16");
  }
  if (c.stages < 1 || c.stages > kMaxStages) {
    return Verdict::no("stages=" + number(c.stages) + "; 1 to " + number(kMaxStages));
  }
  if (c.q_stages != 1 || c.pingpong || c.q_columns_in_regs != 0 || c.pack_gqa != 1 ||
      c.num_splits != 0) {
    return Verdict::no("q_stages=" + number(c.q_stages) +
                       "; cuda_sm90 in fp32 takes 1, and no pingpong, q_columns_in_regs, pack_gqa "
                       "or num_splits");
  }
  return yes();
}

struct Tile {
  int block_q, block_k, stages;
};

// In the order to try them.
constexpr Tile kTiles[] = {
    {128, 80, 1}, {128, 64, 2}, {128, 96, 2}, {192, 64, 2}, {128, 64, 1}, {64, 64, 1},
};

}  // namespace

Verdict check_fp32x3_problem(int head_dim, int value_dim, const Problem& p, const Limits& limits) {
  if (limits.highest != Target::cuda_sm90) {
    return Verdict::no("cuda_sm90 runs on compute capability 9.0 only");
  }
  if (p.dtype != DType::fp32) {
    return Verdict::no(std::string("element=fp32 but the problem is ") + name_of(p.dtype));
  }
  for (const Verdict& verdict :
       {check_dim("head_dim", head_dim, "d", p.d), check_dim("value_dim", value_dim, "dv", p.dv),
        check_strides(p), check_lengths(p)}) {
    if (!verdict) return verdict;
  }
  return yes();
}

int expected_fp32x3_registers(const ForwardConfig& c) {
  const int weights = 3 * c.block_k / 4, output = c.value_dim / 2;
  return weights + output + std::max(c.block_k / 2, output) + kOthers;
}

Verdict check_fp32x3(const ForwardConfig& config, const Problem& problem, const Limits& limits) {
  for (const Verdict& verdict :
       {check_fp32x3_problem(config.head_dim, config.value_dim, problem, limits),
        check_shape(config)}) {
    if (!verdict) return verdict;
  }
  if (const Verdict fits = check_smem(config.smem_bytes(), limits); !fits) return fits;
  if (expected_fp32x3_registers(config) <= config.query_registers()) return yes();
  return Verdict::no("a thread would need " + number(expected_fp32x3_registers(config)) +
                     " registers and has " + number(config.query_registers()));
}

std::vector<ForwardConfig> fp32x3_candidates(const Problem& p, const Limits& limits) {
  if (p.packed() || !p.plain_logits()) return {};
  std::vector<ForwardConfig> legal;
  if (std::max(p.d, p.dv) <= kPortableDim) return legal;
  for (const Tile& tile : kTiles) {
    const ForwardConfig config{.target = Target::cuda_sm90,
                               .element = DType::fp32,
                               .head_dim = sm90_head_dim(p.d),
                               .value_dim = sm90_head_dim(p.dv),
                               .block_q = tile.block_q,
                               .block_k = tile.block_k,
                               .warps = tile.block_q / 16,
                               .stages = tile.stages,
                               .ctas = 1};
    if (check_fp32x3(config, p, limits)) legal.push_back(config);
  }
  return legal;
}

}  // namespace dfa
