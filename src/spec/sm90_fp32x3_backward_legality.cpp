#include <string>
#include <utility>

#include "spec/gpu_legality.h"
#include "spec/sm90_fp32x3_legality.h"
#include "spec/sm90_legality.h"

namespace dfa {
namespace {

constexpr int kWarps = 8;  // a warpgroup for each gradient of the keys
constexpr int kMaxStages = 4;
constexpr int kRegisters = 240;  // of a thread with keys
constexpr int kOthers = 48;

std::string number(long long value) { return std::to_string(value); }

Verdict yes() { return Verdict::yes(); }

// The sums of dq have as many columns as the problem's dq is padded to elsewhere too.
Verdict check_dq(const BackwardConfig& c, const Problem& p) {
  if (c.dq != DqAccumulation::serialized) {
    return Verdict::no(std::string("dq=") + name_of(c.dq) + "; cuda_sm90 in fp32 takes serialized");
  }
  if (c.cluster != 1) return Verdict::no("cluster=2 is of 16 bits; cuda_sm90 in fp32 has 1");
  const std::pair<const char*, bool> of_16_bits[] = {{"persistent", c.persistent},
                                                     {"masked", c.masked},
                                                     {"split_q", c.split_q},
                                                     {"gqa_inner_loop", c.gqa_inner_loop}};
  for (const auto& [field, on] : of_16_bits) {
    if (on) {
      return Verdict::no(std::string(field) + "=true is of 16 bits; cuda_sm90 in fp32 has false");
    }
  }
  if (c.head_dim == gpu_head_dim(p.d)) return yes();
  return Verdict::no("cuda_sm90's backward would pad d=" + number(p.d) + " to " +
                     number(c.head_dim));
}

Verdict check_shape(const BackwardConfig& c) {
  if (c.block_k != kGroupRows || c.warps != kWarps || c.ctas != 1 || c.sharing != 1) {
    return Verdict::no("block_k=" + number(c.block_k) + ", warps=" + number(c.warps) +
                       ", ctas=" + number(c.ctas) + ", sharing=" + number(c.sharing) +
                       "; cuda_sm90 in fp32 takes 64, 8, 1 and 1");
  }
  if (c.block_q != 64 && c.block_q != 128) {
    return Verdict::no("block_q=" + number(c.block_q) + "; 64 or 128");
  }
  if (c.stages >= 1 && c.stages <= kMaxStages) return yes();
  return Verdict::no("stages=" + number(c.stages) + "; 1 to " + number(kMaxStages));
}

struct Tile {
  int block_q, stages;
};

// In the order to try them.
constexpr Tile kTiles[] = {{128, 1}, {64, 2}, {64, 1}};

BackwardConfig config_of(const Problem& p, const Tile& tile) {
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

}  // namespace

int expected_fp32x3_registers(const BackwardConfig& c) {
  const int widest = c.head_dim > c.value_dim ? c.head_dim : c.value_dim;
  const int parts = 3 * c.block_q / 4, of_tile = widest / 2;
  return widest / 2 + parts + of_tile + kOthers;
}

Verdict check_fp32x3(const BackwardConfig& c, const Problem& p, const Limits& limits) {
  for (const Verdict& verdict :
       {check_fp32x3_problem(c.head_dim, c.value_dim, p, limits), check_shape(c), check_dq(c, p)}) {
    if (!verdict) return verdict;
  }
  if (const Verdict fits = check_smem(c.smem_bytes(), limits); !fits) return fits;
  if (expected_fp32x3_registers(c) <= kRegisters) return yes();
  return Verdict::no("a thread would need " + number(expected_fp32x3_registers(c)) +
                     " registers and has " + number(kRegisters));
}

std::vector<BackwardConfig> fp32x3_backward_candidates(const Problem& p, const Limits& limits) {
  if (p.packed() || !p.plain_logits()) return {};
  std::vector<BackwardConfig> legal;
  for (const Tile& tile : kTiles) {
    const BackwardConfig config = config_of(p, tile);
    if (check_fp32x3(config, p, limits)) legal.push_back(config);
  }
  return legal;
}

Verdict fp32x3_fits(const Problem& p, const Limits& limits) {
  if (const Verdict plain = check_plain_logits(p); !plain) return plain;
  if (p.packed()) return Verdict::no("cuda_sm90 in fp32 takes no packed sequences");
  constexpr int kLeast = 64;  // the rows of a warpgroup
  if (fp32x3_candidates(p, limits).empty()) {
    const ForwardConfig least{.target = Target::cuda_sm90,
                              .element = DType::fp32,
                              .head_dim = sm90_head_dim(p.d),
                              .value_dim = sm90_head_dim(p.dv),
                              .block_q = kLeast,
                              .block_k = kLeast,
                              .stages = 1,
                              .ctas = 1};
    const Verdict verdict = check_fp32x3(least, p, limits);
    return verdict ? Verdict::no("cuda_sm90 would pad heads of up to 32 to 64") : verdict;
  }
  if (!fp32x3_backward_candidates(p, limits).empty()) return yes();
  return check_fp32x3(config_of(p, kTiles[2]), p, limits);
}

Verdict check_pair(const ForwardConfig& forward, const BackwardConfig& backward) {
  if (is_fp32x3(forward) == is_fp32x3(backward)) return yes();
  return Verdict::no(std::string("cuda_sm90 in fp32 has both passes of a problem or none, as at "
                                 "steep scales lse has to be of the scores that the backward "
                                 "computes again; the forward is ") +
                     name_of(forward.target) + ", the backward " + name_of(backward.target));
}

}  // namespace dfa
