#pragma once

#include "kernels/device.h"
#include "kernels/ptx/arithmetic.cuh"

namespace dfa {

inline constexpr float kTanhIsOne = 7.9f;  // from here on

// tanh by a quotient of polynomials, to 6e-7 of its value: one multi-function instruction, of which
// a softmax has one itself. By exp2 it would be two, and digits would cancel where a cap is far
// above its logits; tanh.approx has 11 bits, too few for lse. NaN stays.
DFA_DEVICE float quick_tanh(float x, float most = kTanhIsOne) {
  x = ptx::clamp(x, most);
  const float y = x * x;
  float p = fmaf(y, -6.278010447e-9f, 7.238069575e-6f);
  p = fmaf(y, p, 2.706483438e-3f);
  p = fmaf(y, p, 0.1272222999f);
  p = fmaf(y, p, 0.999999827f);
  float q = fmaf(y, 1.980383579e-4f, 2.289323303e-2f);
  q = fmaf(y, q, 0.460554179f);
  q = fmaf(y, q, 1.f);
  return x * p * ptx::reciprocal(q);
}

}  // namespace dfa
