#include <algorithm>
#include <iterator>
#include <utility>

#include "plan/registers.h"
#include "plan/rules.h"
#include "plan/validate_gpu.h"
#include "spec/config_names.h"

namespace dfa {
namespace {

using namespace rules;

constexpr int kKeys[] = {64, 80, 96, 112, 128};  // columns of a product that ptx/wgmma.cuh has
constexpr int kMaxGroups = 3;
constexpr int kMaxStages = 4;
constexpr int kMaxDim = 128;
constexpr int kBackwardWarps = 8;        // a warpgroup for each gradient of the keys
constexpr int kBackwardRegisters = 240;  // of a thread with keys

Verdict validate_dim(const char* field, int value, const char* name, std::int64_t dim) {
  const int wanted = sm90_head_dim(dim);
  return all({
      require(wanted <= kMaxDim && wanted != 0, "cuda_sm90 in fp32 has d and dv up to ", kMaxDim,
              ", not ", name, "=", dim),
      require(value == wanted, field, "=", value, " but ", name, "=", dim, " takes ", wanted,
              " of cuda_sm90"),
  });
}

// Of both passes: the card, the element type, the dims, lengths and strides.
template <typename Config>
Verdict validate_problem(const Config& c, const Problem& p, const Limits& limits) {
  return all({
      require(limits.highest == Target::cuda_sm90, "cuda_sm90 runs on compute capability 9.0 only"),
      require(p.dtype == DType::fp32, "element=fp32 but the problem is ", name_of(p.dtype)),
      require(!p.packed(), "cuda_sm90 in fp32 takes no packed sequences"),
      validate_plain_logits(p),
      validate_logits(c, p),
      validate_dim("head_dim", c.head_dim, "d", p.d),
      validate_dim("value_dim", c.value_dim, "dv", p.dv),
      validate_strides(p),
      validate_mask(p),
      validate_ranges_said(c.ranges, p),
      validate_blocks_said(c.blocks, p),
      validate_dropout_said(c.dropout, p),
      validate_lengths(p),
  });
}

Verdict validate_shape(const ForwardConfig& c) {
  const int groups = c.block_q / kGroupRows;
  const bool whole = c.block_q % kGroupRows == 0 && groups >= 1 && groups <= kMaxGroups;
  return all({
      require(whole && c.warps == 4 * groups && c.ctas == 1, "block_q=", c.block_q,
              ", warps=", c.warps, ", ctas=", c.ctas,
              "; 64, 128 or 192 queries, 4 warps for 64 of them, and 1"),
      require(std::ranges::count(kKeys, c.block_k) == 1, "block_k=", c.block_k,
              "; 64 to 128 in steps of 16"),
      require(c.stages >= 1 && c.stages <= kMaxStages, "stages=", c.stages, "; 1 to ", kMaxStages),
      require(c.q_stages == 1 && !c.pingpong && c.q_columns_in_regs == 0 && c.pack_gqa == 1 &&
                  c.num_splits == 0,
              "q_stages=", c.q_stages,
              "; cuda_sm90 in fp32 takes 1, and no pingpong, q_columns_in_regs, pack_gqa or "
              "num_splits"),
      require(!c.varlen && !c.paged,
              "varlen=true and paged=true are of 16 bits; cuda_sm90 in fp32 has false"),
  });
}

Verdict validate_shape(const BackwardConfig& c) {
  const bool shape =
      c.block_k == kGroupRows && c.warps == kBackwardWarps && c.ctas == 1 && c.sharing == 1;
  return all({
      require(shape, "block_k=", c.block_k, ", warps=", c.warps, ", ctas=", c.ctas,
              ", sharing=", c.sharing, "; cuda_sm90 in fp32 takes 64, 8, 1 and 1"),
      require(c.block_q == 64 || c.block_q == 128, "block_q=", c.block_q, "; 64 or 128"),
      require(c.stages >= 1 && c.stages <= kMaxStages, "stages=", c.stages, "; 1 to ", kMaxStages),
  });
}

Verdict off(const char* field, bool on) {
  return require(!on, field, "=true is of 16 bits; cuda_sm90 in fp32 has false");
}

// The sums of dq have as many columns as the problem's dq is padded to elsewhere too.
Verdict validate_dq(const BackwardConfig& c, const Problem& p) {
  return all({
      require(c.dq == DqAccumulation::serialized, "dq=", name_of(c.dq),
              "; cuda_sm90 in fp32 takes serialized"),
      require(c.cluster == 1, "cluster=2 is of 16 bits; cuda_sm90 in fp32 has 1"),
      off("persistent", c.persistent),
      off("masked", c.masked),
      off("split_q", c.split_q),
      off("gqa_inner_loop", c.gqa_inner_loop),
      require(c.head_dim == gpu_head_dim(p.d), "cuda_sm90's backward would pad d=", p.d, " to ",
              c.head_dim),
  });
}

}  // namespace

Verdict validate_fp32x3(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  const Verdict fits = all({validate_problem(c, p, limits), validate_shape(c)});
  if (!fits) return fits;
  return all({validate_smem(c.smem_bytes(), limits),
              validate_registers(expected_fp32x3_registers(c), c.query_registers())});
}

Verdict validate_fp32x3(const BackwardConfig& c, const Problem& p, const Limits& limits) {
  return all({validate_problem(c, p, limits), validate_shape(c), validate_dq(c, p),
              validate_smem(c.smem_bytes(), limits),
              validate_registers(expected_fp32x3_registers(c), kBackwardRegisters)});
}

}  // namespace dfa
