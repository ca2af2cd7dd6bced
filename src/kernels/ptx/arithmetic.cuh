#pragma once

#include "dfa/dtype.h"
#include "kernels/device.h"

// Single arithmetic instructions that C++ has no word for.
namespace dfa::ptx {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

// blockIdx.x, read anew each time: no register holds it, nor what follows from it, in between.
DFA_DEVICE unsigned block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

DFA_DEVICE unsigned thread_index() {  // likewise threadIdx.x
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// The same, and registers may hold it.
DFA_DEVICE unsigned kept_thread_index() {
  unsigned index;
  asm("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// The compiler knows this value no more, so that no register holds what follows from it before.
DFA_DEVICE void forget(unsigned& value) { asm volatile("" : "+r"(value)); }

DFA_DEVICE float infinity() { return __int_as_float(0x7f800000); }

// Of two in bf16 those below -1e30 become -inf (kBiasHides). sm_90.
DFA_DEVICE unsigned infinite_below(unsigned pair) {
  constexpr unsigned kNext = 0xf14af14a, kInfinities = 0xff80ff80;  // the first below
  unsigned below;
  asm("set.le.u32.bf16x2 %0, %1, %2;" : "=r"(below) : "r"(pair), "r"(kNext));
  return (below & kInfinities) | (pair & ~below);
}

DFA_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DFA_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DFA_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Within 0 and 1; of NaN 0.
DFA_DEVICE float saturate(float x) { return __saturatef(x); }

// Within -most and most; NaN stays. From sm_80 on.
DFA_DEVICE float clamp(float x, float most) {
  float y;
  asm("{.reg .f32 t; min.NaN.f32 t, %1, %2; max.NaN.f32 %0, t, %3;}"
      : "=f"(y)
      : "f"(x), "f"(most), "f"(-most));
  return y;
}

// Two values rounded to the element type, `low` in the lower half.
template <DType kElement>
DFA_DEVICE unsigned pack(float low, float high) {
  unsigned packed;
  if constexpr (kElement == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else if constexpr (kSm75) {
    asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %2; cvt.rn.f16.f32 h, %1; mov.b32 %0, {l, h};}"
        : "=r"(packed)
        : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Four values rounded to e4m3, the first in the lowest byte; what is beyond 448 becomes that. From
// sm_89 on.
DFA_DEVICE unsigned pack_e4m3(float first, float second, float third, float fourth) {
  unsigned packed;
  asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;"
      " cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
      : "=r"(packed)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return packed;
}

// The numbers of two codes in e4m3, those of the lower half and those of the upper one, as fp16,
// which has all of them. From sm_89 on.
DFA_DEVICE void unpack_e4m3(unsigned codes, unsigned& lower, unsigned& upper) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2;"
      " cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(lower), "=r"(upper)
      : "r"(codes));
}

// 10 mantissa bits, as the bits of an fp32.
DFA_DEVICE unsigned round_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// The two halves as fp32.
template <DType kElement>
DFA_DEVICE void unpack(unsigned packed, float& low, float& high) {
  if constexpr (kElement == DType::bf16) {
    low = __uint_as_float(packed << 16);
    high = __uint_as_float(packed & 0xffff0000u);
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(packed));
  }
}

// Four registers as 16 bytes, and back.
DFA_DEVICE uint4 to_bits(const unsigned (&r)[4]) { return make_uint4(r[0], r[1], r[2], r[3]); }
DFA_DEVICE uint4 to_bits(const float (&r)[4]) {
  return make_uint4(__float_as_uint(r[0]), __float_as_uint(r[1]), __float_as_uint(r[2]),
                    __float_as_uint(r[3]));
}
DFA_DEVICE void from_bits(unsigned (&r)[4], const uint4& bits) {
  r[0] = bits.x;
  r[1] = bits.y;
  r[2] = bits.z;
  r[3] = bits.w;
}
DFA_DEVICE void from_bits(float (&r)[4], const uint4& bits) {
  r[0] = __uint_as_float(bits.x);
  r[1] = __uint_as_float(bits.y);
  r[2] = __uint_as_float(bits.z);
  r[3] = __uint_as_float(bits.w);
}

// Over the four lanes that share a row of an accumulator.
DFA_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 2));
}

DFA_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kWholeWarp, x, 1);
  return x + __shfl_xor_sync(kWholeWarp, x, 2);
}

}  // namespace dfa::ptx
