#include "plan/select.h"

#include <algorithm>
#include <type_traits>

#include "plan/validate.h"
#include "spec/config_names.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

template <typename Config>
std::vector<Config> cpu_candidates(const Problem& p, const Limits& limits) {
  constexpr int kBlocks[] = {16, 32, 64, 96, 128, 192, 256, 384, 512};
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
        if (validate_config(config, p, limits)) legal.push_back(config);
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
  const Verdict verdict = validate_config(config, p, limits);
  if (!verdict) throw InvalidArgument("config: " + verdict.reason);
  return config;
}

// In fp32 both passes take the same kernels (validate_pair): the target that a text gives one of
// them is the other's too.
template <typename Other>
std::string text_of_pair(const char* type, const char* other, const std::string& text,
                         const Problem& p, const Limits& limits,
                         Other (*select)(const Problem&, const Limits&)) {
  const std::string of_other = text_of_type(other, text);
  if (p.dtype != DType::fp32 || of_other.empty() || of_other == text_of_type(type, text)) {
    return text_of_type(type, text);
  }
  return std::string("target=") + name_of(parse_config(of_other, select(p, limits)).target);
}

template <typename Config>
Config base_of(const std::string& text, const Problem& problem, const Limits& limits,
               Config (*select)(const Problem&, const Limits&)) {
  const Config usual = select(problem, limits);
  const Config meant = parse_config(text, usual);
  const Target wanted = meant.target;
  const auto is_legal = [&](const Config& c) {
    return bool(validate_config(parse_config(text, c), problem, limits));
  };
  if (wanted == usual.target && !validate_config(meant, problem, limits)) {
    for (const Config& other : gpu_candidates<Config>(problem, limits)) {
      if (is_legal(other)) return other;
    }
  }
  if (wanted == usual.target || !is_gpu(wanted) || wanted > limits.highest) return usual;
  Limits lower = limits;
  lower.highest = wanted;
  const std::vector<Config> candidates = gpu_candidates<Config>(problem, lower);
  const auto is_meant = [&](const Config& c) { return c.target == wanted && is_legal(c); };
  auto found = std::ranges::find_if(candidates, is_meant);
  if (found == candidates.end()) {
    found = std::ranges::find(candidates, wanted, &Config::target);
  }
  return found == candidates.end() ? select(problem, lower) : *found;
}

}  // namespace

std::vector<ForwardConfig> forward_candidates(const Problem& problem, const Limits& limits) {
  return is_gpu(limits.highest) ? gpu_candidates<ForwardConfig>(problem, limits)
                                : cpu_candidates<ForwardConfig>(problem, limits);
}

std::vector<BackwardConfig> backward_candidates(const Problem& problem, const Limits& limits) {
  return is_gpu(limits.highest) ? gpu_candidates<BackwardConfig>(problem, limits)
                                : cpu_candidates<BackwardConfig>(problem, limits);
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
      text_of_pair("ForwardConfig", "BackwardConfig", text, problem, limits, &select_backward);
  return base_of(own, problem, limits, &select_forward);
}

BackwardConfig gpu_backward_base(const std::string& text, const Problem& problem,
                                 const Limits& limits) {
  const std::string own =
      text_of_pair("BackwardConfig", "ForwardConfig", text, problem, limits, &select_forward);
  return base_of(own, problem, limits, &select_backward);
}

ForwardConfig asked_forward(const std::string& text, const Problem& problem, const Limits& limits) {
  if (text.empty()) return legal(select_forward(problem, limits), problem, limits);
  return legal_config(text, gpu_forward_base(text, problem, limits), problem, limits);
}

BackwardConfig asked_backward(const std::string& text, const Problem& problem,
                              const Limits& limits) {
  if (text.empty()) {
    if (const Verdict fits = backward_fits(problem, limits); !fits) {
      throw InvalidArgument("config: " + fits.reason);
    }
    return select_backward(problem, limits);
  }
  return legal_config(text, gpu_backward_base(text, problem, limits), problem, limits);
}

}  // namespace dfa
