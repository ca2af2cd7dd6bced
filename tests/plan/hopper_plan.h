#pragma once

#include "plan/select.h"
#include "spec/limits.h"

namespace dfa {

inline const Limits kHopper90 = gpu_limits(90);

// What is planned where a text names Hopper alone.
inline BackwardConfig hopper_backward(const Problem& p) {
  return gpu_backward_base("BackwardConfig{target=cuda_sm90}", p, kHopper90);
}

}  // namespace dfa
