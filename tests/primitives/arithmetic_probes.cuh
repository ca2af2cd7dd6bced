#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "primitives/probe_args.h"

// Instructions of one thread, and those between the lanes of a warp, over arrays of words.
namespace dfa::probe {

DFA_DEVICE unsigned word(const void* words, int i) {
  return static_cast<const unsigned*>(words)[i];
}
DFA_DEVICE float number(const void* numbers, int i) {
  return static_cast<const float*>(numbers)[i];
}
DFA_DEVICE void put(const Args& args, int i, unsigned value) {
  static_cast<unsigned*>(args.out)[i] = value;
}
DFA_DEVICE void put(const Args& args, int i, float value) { put(args, i, __float_as_uint(value)); }

struct Exp2 {
  static DFA_DEVICE void of(const Args& args, int i) { put(args, i, ptx::exp2(number(args.a, i))); }
};
struct Log2 {
  static DFA_DEVICE void of(const Args& args, int i) { put(args, i, ptx::log2(number(args.a, i))); }
};
struct Reciprocal {
  static DFA_DEVICE void of(const Args& args, int i) {
    put(args, i, ptx::reciprocal(number(args.a, i)));
  }
};
struct RoundTf32 {
  static DFA_DEVICE void of(const Args& args, int i) {
    put(args, i, ptx::round_tf32(number(args.a, i)));
  }
};
template <DType kElement>
struct Pack {
  static DFA_DEVICE void of(const Args& args, int i) {
    put(args, i, ptx::pack<kElement>(number(args.a, i), number(args.b, i)));
  }
};
template <DType kElement>
struct Unpack {
  static DFA_DEVICE void of(const Args& args, int i) {
    float low, high;
    ptx::unpack<kElement>(word(args.a, i), low, high);
    put(args, 2 * i, low);
    put(args, 2 * i + 1, high);
  }
};
struct Infinity {
  static DFA_DEVICE void of(const Args& args, int i) { put(args, i, ptx::infinity()); }
};
// Four words through 16 bytes and back, as words and as numbers.
struct Bits {
  static DFA_DEVICE void of(const Args& args, int i) {
    unsigned words[4];
    float numbers[4];
    ptx::from_bits(words, static_cast<const uint4*>(args.a)[i]);
    ptx::from_bits(numbers, ptx::to_bits(words));
    static_cast<uint4*>(args.out)[i] = ptx::to_bits(numbers);
  }
};
struct QuadMax {
  static DFA_DEVICE void of(const Args& args, int i) {
    put(args, i, ptx::quad_max(number(args.a, i)));
  }
};
struct QuadSum {
  static DFA_DEVICE void of(const Args& args, int i) {
    put(args, i, ptx::quad_sum(number(args.a, i)));
  }
};

// `Function` on every index below n, a multiple of the warp.
template <typename Function>
__global__ void each(const __grid_constant__ Args args) {
  const int i = static_cast<int>(ptx::block_index() * blockDim.x + ptx::thread_index());
  if (i < args.n) Function::of(args, i);
}

}  // namespace dfa::probe
