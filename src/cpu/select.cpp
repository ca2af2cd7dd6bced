#include "cpu/select.h"

namespace dfa::cpu {

Target target_for(Target highest, DType element) {
  return highest == Target::cpu_amx && element != DType::bf16 ? Target::cpu_avx512 : highest;
}

ForwardConfig default_forward(Target highest, const Problem& problem) {
  return {.target = target_for(highest, problem.dtype),
          .element = problem.dtype,
          .head_dim = static_cast<int>(problem.d),
          .value_dim = static_cast<int>(problem.dv),
          .block_q = 64,
          .block_k = 64};
}

BackwardConfig default_backward(Target highest, const Problem& problem) {
  return {.target = target_for(highest, problem.dtype),
          .element = problem.dtype,
          .head_dim = static_cast<int>(problem.d),
          .value_dim = static_cast<int>(problem.dv),
          .block_q = 64,
          .block_k = 64};
}

}  // namespace dfa::cpu
