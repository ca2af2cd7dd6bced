#include <algorithm>

#include "plan/registers.h"
#include "plan/rules.h"
#include "plan/validate_gpu.h"

namespace dfa {
namespace {

using namespace rules;

constexpr int kKeys[] = {64, 96, 128, 192};  // columns of a product, 32 at a time
constexpr int kMostGroups = 3;
constexpr int kMostStages = 4;
constexpr int kQStages = 2;

// A tile of keys has one factor of k and one of v.
Verdict validate_factors(const ForwardConfig& c, const Problem& p) {
  if (p.descale_rows == 0) {
    return require(!c.descale_blocks, "descale_blocks=true is of factors of blocks of rows");
  }
  return all({
      require(c.descale_blocks, "descale_rows(", p.descale_rows,
              ") takes descale_blocks=true of cuda_sm90"),
      require(p.descale_rows % c.block_k == 0 || p.descale_rows >= p.sk, "block_k=", c.block_k,
              " but descale_blocks=true takes tiles of keys that divide blocks of ", p.descale_rows,
              " rows"),
  });
}

Verdict validate_problem(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  constexpr int kStep = 16, kOutputStep = 8;  // the copy engine, and loads of v, step in 16 bytes
  return all({
      require(limits.highest == Target::cuda_sm90, "cuda_sm90 runs on compute capability 9.0 only"),
      require(p.dtype == DType::e4m3, "element=e4m3 but the problem is ", name_of(p.dtype)),
      require(!p.paged() && !c.paged, "cuda_sm90 in e4m3 takes no keys in pages"),
      validate_varlen(c.varlen, p),
      require(!c.varlen || (c.cluster == 1 && c.pack_gqa == 1),
              "varlen=true takes cluster=1 and pack_gqa=1"),
      validate_factors(c, p),
      validate_plain_logits(p),
      validate_logits(c, p),
      validate_sm90_dim("head_dim", c.head_dim, "d", p.d),
      validate_sm90_dim("value_dim", c.value_dim, "dv", p.dv),
      validate_mask(p),
      validate_ranges_said(c.ranges, p),
      validate_blocks_said(c.blocks, p),
      validate_dropout_said(c.dropout, p),
      validate_lengths(p),
      validate_sm90_map("q", p.q(), p.batches(), p.hq, p.q_rows(), kStep),
      validate_sm90_map("k", p.k(), p.batches(), p.hk, p.k_rows(), kStep),
      validate_sm90_map("v", p.v(), p.batches(), p.hk, p.k_rows(), kStep),
      validate_sm90_map("o", p.o(), p.batches(), p.hq, p.q_rows(), kOutputStep),
  });
}

Verdict validate_shape(const ForwardConfig& c) {
  const int groups = c.block_q / kGroupRows;
  const bool whole = c.block_q % kGroupRows == 0 && groups >= 1 && groups <= kMostGroups;
  return all({
      require(whole && c.warps == 4 * groups && c.ctas == 1, "block_q=", c.block_q,
              ", warps=", c.warps, ", ctas=", c.ctas,
              "; 64, 128 or 192 queries, 4 warps for 64 of them, and 1"),
      require(std::ranges::count(kKeys, c.block_k) == 1, "block_k=", c.block_k,
              "; 64, 96, 128 or 192"),
      require(c.block_k / 8 % c.value_parts() == 0, "block_k=", c.block_k, " but value_dim=",
              c.value_dim, " has its exponentials in ", c.value_parts(), " parts"),
      require(c.cluster == 1 || c.cluster == 2, "cluster=", c.cluster, "; 1 or 2"),
      require(!c.transpose_values || (c.cluster == 1 && c.stages != 3), "cluster=", c.cluster,
              ", stages=", c.stages,
              " but transpose_values=true takes cluster=1 and 2 or 4 stages"),
      require(c.stages >= 2 && c.stages <= kMostStages && c.q_stages == kQStages, "stages=",
              c.stages, ", q_stages=", c.q_stages, "; 2 to ", kMostStages, " and ", kQStages),
      require(c.q_columns_in_regs == 0 && c.num_splits == 0 && c.split_keys == 0,
              "q_columns_in_regs, num_splits and split_keys are of 16 bits; cuda_sm90 in e4m3 has "
              "0"),
  });
}

Verdict validate_pack_gqa(const ForwardConfig& c, const Problem& p) {
  const std::int64_t group = p.hq / p.hk;
  return all({
      require(c.pack_gqa >= 1 && c.pack_gqa <= kMostPackedHeads && group % c.pack_gqa == 0,
              "pack_gqa=", c.pack_gqa, "; a part, up to ", kMostPackedHeads, ", of the ", group,
              " query heads of a key head"),
      require(c.pack_gqa == c.query_rows(), "pack_gqa=", c.pack_gqa,
              ", no power of two, is of 16 bits"),
      require(p.sq * c.query_rows() <= kMostRows, "pack_gqa=", c.pack_gqa,
              " makes more rows of sq=", p.sq, " than ", kMostRows),
  });
}

// A cache in e4m3 beside q of 16 bits: what no configuration has comes first.
Verdict validate_cache(const Problem& p, const Limits& limits) {
  constexpr int kStep = 16;
  const auto steps = [](const Strides& s) {
    return s.batch % kStep == 0 && s.head % kStep == 0 && s.row % kStep == 0;
  };
  return all({
      require(limits.highest != Target::cuda_sm75,
              "a cache in e4m3 takes compute capability 8.0 and up; take backend cpu"),
      require(bytes_of(p.dtype) == 2, "a cache in e4m3 beside ", name_of(p.dtype),
              " has no kernel of a GPU; take q in fp16 or bf16, or backend cpu"),
      require(p.mask.is_window(),
              "a cache in e4m3 takes windows alone on a GPU, no chunks and prefixes"),
      require(std::max(p.d, p.dv) <= kMostColumns && p.d % kStep == 0 && p.dv % kStep == 0,
              "a cache in e4m3 takes d and dv in multiples of ", kStep, " up to ", kMostColumns,
              " on a GPU, not d=", p.d, ", dv=", p.dv),
      require(steps(p.k()) && steps(p.v()), "strides of k and v in e4m3 are no multiples of ",
              kStep, " elements, one 16-byte access"),
  });
}

}  // namespace

Verdict validate_e4m3(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  const Verdict fits = all({validate_problem(c, p, limits), validate_shape(c)});
  if (!fits) return fits;
  return all({validate_pack_gqa(c, p), validate_smem(c.smem_bytes(), limits),
              validate_registers(expected_e4m3_registers(c), c.query_registers())});
}

Verdict validate_e4m3_cache(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  if (!p.kv) return require(!c.kv_e4m3, "kv_e4m3=true is of caches in e4m3");
  return all(
      {validate_cache(p, limits),
       require(c.kv_e4m3 && c.split_kv, "a cache in e4m3 takes kv_e4m3=true with split_kv=true")});
}

}  // namespace dfa
