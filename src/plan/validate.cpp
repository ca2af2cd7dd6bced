#include "plan/validate.h"

#include "plan/pack_gqa.h"
#include "plan/rules.h"
#include "plan/validate_gpu.h"
#include "spec/config_names.h"
#include "spec/e4m3.h"
#include "spec/fp32x3.h"

namespace dfa {
namespace {

using namespace rules;

// Least step of a tile side: one vector of fp32, or one AMX tile (32 keys make one bf16 K step).
struct Steps {
  int q, k;
};

constexpr Steps steps_of(Target target) {
  if (target == Target::cpu_portable) return {8, 8};
  if (target == Target::cpu_amx) return {32, 32};
  return is_gpu(target) ? Steps{1, 1} : Steps{8, 16};
}

Verdict validate_block(const char* field, int rows, int step) {
  constexpr int kMaxBlock = 512;
  return require(rows >= step && rows <= kMaxBlock && rows % step == 0, field, "=", rows,
                 " is not a multiple of ", step, " up to ", kMaxBlock);
}

template <typename Config>
Verdict validate_on_cpu(const Config& c, const Problem& p, const Limits& limits) {
  const Steps steps = steps_of(c.target);
  const char *target = name_of(c.target), *dtype = name_of(p.dtype);
  return all({
      require(c.target <= limits.highest, target, " is not there; the highest here is ",
              name_of(limits.highest)),
      require(p.dtype != DType::tf32, "tf32 is a GPU format; use fp32 on the CPU"),
      require(c.target != Target::cpu_amx || p.dtype == DType::bf16,
              "cpu_amx multiplies bf16 only; use cpu_avx512 for ", dtype),
      require(c.target != Target::cpu_amx || p.plain(),
              "cpu_amx takes plain logits alone; use cpu_avx512 for softcap, alibi, bias, sink, "
              "mask_mod, "
              "score_mod and dropout"),
      require(c.target != Target::cpu_amx || !p.kv,
              "cpu_amx takes no cache of another type; use cpu_avx512"),
      require(c.target != Target::cpu_amx || !p.blocks,
              "cpu_amx takes no lists of blocks; use cpu_avx512"),
      require(c.element == p.dtype, "element=", name_of(c.element), " but the problem is ", dtype),
      require(c.head_dim == p.d, "head_dim=", c.head_dim, " but the problem has d=", p.d),
      require(c.value_dim == p.dv, "value_dim=", c.value_dim, " but the problem has dv=", p.dv),
      validate_block("block_q", c.block_q, steps.q),
      validate_block("block_k", c.block_k, steps.k),
      require(c.tile_bytes() <= limits.cache_bytes, "the tiles take ", c.tile_bytes(),
              " bytes but the cache has ", limits.cache_bytes),
  });
}

// Kernels of a GPU work on the problem with its heads packed, where it can be.
template <typename Config>
Verdict validate_on_gpu(const Config& c, const Problem& problem, const Limits& limits) {
  const Problem p = with_pack_gqa(problem);
  if (!is_gpu(c.target)) {
    return no(name_of(c.target),
              " runs on a processor; a GPU takes cuda_sm75, cuda_sm80 or cuda_sm90");
  }
  if (limits.highest == Target::cuda_sm75 && c.target == Target::cuda_sm80) {
    return no("cuda_sm80 runs from compute capability 8.0 on");
  }
  if constexpr (requires { c.descale_blocks; }) {
    if (c.descale_blocks && !is_e4m3(c)) return no("descale_blocks=true is of cuda_sm90 in e4m3");
    if (c.transpose_values && !is_e4m3(c)) {
      return no("transpose_values=true is of cuda_sm90 in e4m3");
    }
  }
  if (c.target != Target::cuda_sm90) return validate_portable(c, p, limits);
  if (is_fp32x3(c)) return validate_fp32x3(c, p, limits);
  if constexpr (requires { is_e4m3(c); }) {
    if (is_e4m3(c)) return validate_e4m3(c, p, limits);
  }
  return validate_sm90(c, p, limits);
}

}  // namespace

Verdict validate_config(const ForwardConfig& config, const Problem& problem, const Limits& limits) {
  return is_gpu(limits.highest) ? validate_on_gpu(config, problem, limits)
                                : validate_on_cpu(config, problem, limits);
}

Verdict validate_config(const BackwardConfig& config, const Problem& problem,
                        const Limits& limits) {
  return is_gpu(limits.highest) ? validate_on_gpu(config, problem, limits)
                                : validate_on_cpu(config, problem, limits);
}

Verdict validate_pair(const ForwardConfig& forward, const BackwardConfig& backward) {
  return require(is_fp32x3(forward) == is_fp32x3(backward),
                 "cuda_sm90 in fp32 has both passes of a problem or none, as at steep scales lse "
                 "has to be of the scores that the backward computes again; the forward is ",
                 name_of(forward.target), ", the backward ", name_of(backward.target));
}

}  // namespace dfa
