#pragma once

#include "kernels/backward/sm90_backward.cuh"
#include "kernels/backward/sm90_pair_backward.cuh"
#include "kernels/backward/sm90_wide_backward.cuh"

namespace dfa::emulated {

// Hopper's kernel of a configuration.
template <BackwardConfig kConfig>
void sm90_any_backward(const Sm90BackwardArgs& args) {
  if constexpr (kConfig.sm90_is_wide()) {
    sm90_wide_backward<kConfig>(args);
  } else if constexpr (kConfig.cluster > 1) {
    sm90_pair_backward<kConfig>(args);
  } else {
    sm90_backward<kConfig>(args);
  }
}

}  // namespace dfa::emulated
