#pragma once

#include "kernels/device.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/variant/quick_tanh.cuh"

// What the text of a mask_mod or a score_mod is made of on a device
// (docs/design/0036-user-text.md). UserText<true> is written for each problem from the trees that
// its texts were parsed to, and goes ahead of the kernel's file (spec/expression_source.h).
namespace dfa {

template <bool kText>
struct UserText;

struct UserTextPlace {
  int b, h, q_idx, kv_idx, sq, sk;
};

// Arithmetic of ints that C++ leaves undefined in places, as spec/expression.h has it.
namespace text {

DFA_DEVICE int add(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
DFA_DEVICE int subtract(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
DFA_DEVICE int multiply(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
}
DFA_DEVICE int negate(int a) { return subtract(0, a); }
DFA_DEVICE int absolute(int a) { return a < 0 ? negate(a) : a; }
DFA_DEVICE int divide(int a, int b) {
  if (b == 0) return 0;
  return b == -1 ? negate(a) : a / b;
}
DFA_DEVICE int remainder(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
DFA_DEVICE int shift_left(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) << (b & 31));
}
DFA_DEVICE int shift_right(int a, int b) { return a >> (b & 31); }
DFA_DEVICE int truncate(float x) {
  if (!(x == x)) return 0;
  if (x >= 2147483648.f) return 2147483647;
  if (x <= -2147483648.f) return -2147483647 - 1;
  return static_cast<int>(x);
}

// Of numbers. A product is rounded before it is added to, so that what does not move with the score
// is the same on every engine.
DFA_DEVICE float add(float a, float b) { return a + b; }
DFA_DEVICE float subtract(float a, float b) { return a - b; }
DFA_DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DFA_DEVICE float negate(float a) { return -a; }
DFA_DEVICE float absolute(float a) { return fabsf(a); }
DFA_DEVICE float divide(float a, float b) { return a / b; }
DFA_DEVICE int least(int a, int b) { return a < b ? a : b; }
DFA_DEVICE int largest(int a, int b) { return a > b ? a : b; }
DFA_DEVICE bool takes_second_least(float a, float b) { return a != a || b < a; }
DFA_DEVICE bool takes_second_largest(float a, float b) { return a != a || b > a; }
DFA_DEVICE float least(float a, float b) { return takes_second_least(a, b) ? b : a; }
DFA_DEVICE float largest(float a, float b) { return takes_second_largest(a, b) ? b : a; }

}  // namespace text
}  // namespace dfa
