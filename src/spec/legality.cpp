#include "spec/legality.h"

#include <algorithm>
#include <string>

#include "spec/config_text.h"
#include "spec/gpu_legality.h"
#include "spec/pack_gqa.h"
#include "spec/sm90_fp32x3_legality.h"
#include "spec/sm90_legality.h"

namespace dfa {
namespace {

// Least step of a tile side: one vector of fp32, or one AMX tile (32 keys make one bf16 K step).
struct Steps {
  int q;
  int k;
};

constexpr Steps steps_of(Target target) {
  switch (target) {
    case Target::cpu_portable: return {8, 8};
    case Target::cpu_avx2: return {8, 16};
    case Target::cpu_avx512: return {8, 16};
    case Target::cpu_amx: return {32, 32};
    case Target::cuda_sm75:
    case Target::cuda_sm80:
    case Target::cuda_sm90: break;
  }
  return {1, 1};
}

constexpr int kMaxBlock = 512;

std::string number(long long value) { return std::to_string(value); }

Verdict check_hopper(const ForwardConfig& c, const Problem& p, const Limits& limits) {
  return is_fp32x3(c) ? check_fp32x3(c, p, limits) : check_sm90(c, p, limits);
}
Verdict check_hopper(const BackwardConfig& c, const Problem& p, const Limits& limits) {
  return is_fp32x3(c) ? check_fp32x3(c, p, limits) : check_sm90(c, p, limits);
}

// Kernels of a GPU work on the problem with its heads packed, where it can be.
template <typename Config>
Verdict check_on_gpu(const Config& c, const Problem& problem, const Limits& limits) {
  const Problem p = with_pack_gqa(problem);
  if (!is_gpu(c.target)) {
    return Verdict::no(std::string(name_of(c.target)) +
                       " runs on a processor; a GPU takes cuda_sm75, cuda_sm80 or cuda_sm90");
  }
  if (limits.highest == Target::cuda_sm75 && c.target == Target::cuda_sm80) {
    return Verdict::no("cuda_sm80 runs from compute capability 8.0 on");
  }
  return c.target == Target::cuda_sm90 ? check_hopper(c, p, limits) : check_gpu(c, p, limits);
}

template <typename Config>
Verdict check_any(const Config& c, const Problem& p, const Limits& limits) {
  if (is_gpu(limits.highest)) return check_on_gpu(c, p, limits);
  const Steps steps = steps_of(c.target);
  if (c.target > limits.highest) {
    return Verdict::no(std::string(name_of(c.target)) + " is not there; the highest here is " +
                       name_of(limits.highest));
  }
  if (p.dtype == DType::tf32) return Verdict::no("tf32 is a GPU format; use fp32 on the CPU");
  if (p.dtype == DType::fp8) return Verdict::no("fp8 is not built; use fp32, fp16 or bf16");
  if (c.target == Target::cpu_amx && p.dtype != DType::bf16) {
    return Verdict::no("cpu_amx multiplies bf16 only; use cpu_avx512 for " +
                       std::string(name_of(p.dtype)));
  }
  if (c.target == Target::cpu_amx && !p.plain_logits()) {
    return Verdict::no(
        "cpu_amx takes plain logits alone; use cpu_avx512 for softcap, alibi and sink");
  }
  if (c.element != p.dtype) {
    return Verdict::no(std::string("element=") + name_of(c.element) + " but the problem is " +
                       name_of(p.dtype));
  }
  if (c.head_dim != p.d) {
    return Verdict::no("head_dim=" + number(c.head_dim) + " but the problem has d=" + number(p.d));
  }
  if (c.value_dim != p.dv) {
    return Verdict::no("value_dim=" + number(c.value_dim) +
                       " but the problem has dv=" + number(p.dv));
  }
  if (c.block_q < steps.q || c.block_q > kMaxBlock || c.block_q % steps.q != 0) {
    return Verdict::no("block_q=" + number(c.block_q) + " is not a multiple of " + number(steps.q) +
                       " up to " + number(kMaxBlock));
  }
  if (c.block_k < steps.k || c.block_k > kMaxBlock || c.block_k % steps.k != 0) {
    return Verdict::no("block_k=" + number(c.block_k) + " is not a multiple of " + number(steps.k) +
                       " up to " + number(kMaxBlock));
  }
  if (c.tile_bytes() > limits.cache_bytes) {
    return Verdict::no("the tiles take " + number(c.tile_bytes()) + " bytes but the cache has " +
                       number(limits.cache_bytes));
  }
  return Verdict::yes();
}

template <typename Config>
std::vector<Config> enumerate(const Problem& p, const Limits& limits) {
  constexpr int kBlocks[] = {16, 32, 64, 96, 128, 192, 256, 384, 512};
  if (is_gpu(limits.highest)) return gpu_candidates<Config>(p, limits);
  std::vector<Config> legal;
  for (const Target target : kTargets) {
    for (const int block_q : kBlocks) {
      for (const int block_k : kBlocks) {
        const Config config{.target = target,
                            .element = p.dtype,
                            .head_dim = static_cast<int>(p.d),
                            .value_dim = static_cast<int>(p.dv),
                            .block_q = block_q,
                            .block_k = block_k};
        if (check(config, p, limits)) legal.push_back(config);
      }
    }
  }
  return legal;
}

std::string text_of_type(const std::string& type, const std::string& text) {
  const std::size_t brace = text.find('{');
  if (brace == std::string::npos || brace == 0) return text;
  return text.substr(0, brace) == type ? text : "";
}

template <typename Config>
Config legal(const Config& config, const Problem& p, const Limits& limits) {
  const Verdict verdict = check(config, p, limits);
  if (!verdict) throw InvalidArgument("config: " + verdict.reason);
  return config;
}

// In fp32 both passes take the same kernels (check_pair): the target that a text gives one of them
// is the other's too.
template <typename Other>
std::string text_of_pair(const char* type, const char* other, const std::string& text,
                         const Problem& p, const Limits& limits,
                         Other (*default_of)(const Problem&, const Limits&)) {
  const std::string of_other = text_of_type(other, text);
  if (p.dtype != DType::fp32 || of_other.empty() || of_other == text_of_type(type, text)) {
    return text_of_type(type, text);
  }
  return std::string("target=") + name_of(parse_config(of_other, default_of(p, limits)).target);
}

// What a text is said of: the usual config, or the first that is legal with it.
template <typename Config>
Config gpu_base(const std::string& text, const Problem& problem, const Limits& limits,
                Config (*default_of)(const Problem&, const Limits&)) {
  const Config usual = default_of(problem, limits);
  const Config meant = parse_config(text, usual);
  const Target wanted = meant.target;
  if (wanted == usual.target && !check_any(meant, problem, limits)) {
    for (const Config& other : gpu_candidates<Config>(problem, limits)) {
      if (check_any(parse_config(text, other), problem, limits)) return other;
    }
  }
  if (wanted == usual.target || !is_gpu(wanted) || wanted > limits.highest) return usual;
  Limits lower = limits;
  lower.highest = wanted;
  const std::vector<Config> candidates = gpu_candidates<Config>(problem, lower);
  const auto of_target = [&](const Config& config) { return config.target == wanted; };
  const auto found = std::find_if(candidates.begin(), candidates.end(), of_target);
  return found == candidates.end() ? default_of(problem, lower) : *found;
}

}  // namespace

Verdict check(const ForwardConfig& config, const Problem& problem, const Limits& limits) {
  return check_any(config, problem, limits);
}

Verdict check(const BackwardConfig& config, const Problem& problem, const Limits& limits) {
  return check_any(config, problem, limits);
}

ForwardConfig legal_config(const std::string& text, const ForwardConfig& base,
                           const Problem& problem, const Limits& limits) {
  return legal(parse_config(text_of_type("ForwardConfig", text), base), problem, limits);
}

BackwardConfig legal_config(const std::string& text, const BackwardConfig& base,
                            const Problem& problem, const Limits& limits) {
  return legal(parse_config(text_of_type("BackwardConfig", text), base), problem, limits);
}

ForwardConfig gpu_forward_base(const std::string& text, const Problem& problem,
                               const Limits& limits) {
  const std::string own =
      text_of_pair("ForwardConfig", "BackwardConfig", text, problem, limits, &default_gpu_backward);
  return gpu_base(own, problem, limits, &default_gpu_forward);
}

BackwardConfig gpu_backward_base(const std::string& text, const Problem& problem,
                                 const Limits& limits) {
  const std::string own =
      text_of_pair("BackwardConfig", "ForwardConfig", text, problem, limits, &default_gpu_forward);
  return gpu_base(own, problem, limits, &default_gpu_backward);
}

std::vector<ForwardConfig> forward_candidates(const Problem& problem, const Limits& limits) {
  return enumerate<ForwardConfig>(problem, limits);
}

std::vector<BackwardConfig> backward_candidates(const Problem& problem, const Limits& limits) {
  return enumerate<BackwardConfig>(problem, limits);
}

}  // namespace dfa
