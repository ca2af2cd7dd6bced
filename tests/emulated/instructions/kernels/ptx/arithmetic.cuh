#pragma once

#include <limits>

#include "base/float16.h"
#include "dfa/dtype.h"
#include "kernels/device.h"

namespace dfa::ptx {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

inline unsigned block_index() { return blockIdx.x; }
inline unsigned thread_index() { return threadIdx.x; }
inline unsigned kept_thread_index() { return threadIdx.x; }
inline void forget(unsigned&) {}
inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline float exp2(float x) {  // as the device has it, nothing is subnormal
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0 : y;
}
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float saturate(float x) { return x > 0 ? std::fmin(x, 1.f) : 0; }
inline float clamp(float x, float most) { return x > most ? most : x < -most ? -most : x; }

template <DType kElement>
unsigned pack(float low, float high) {
  if constexpr (kElement == DType::bf16) {
    return to_bf16(low).bits | static_cast<unsigned>(to_bf16(high).bits) << 16;
  } else {
    static_assert(kElement == DType::fp16);
    return to_fp16(low).bits | static_cast<unsigned>(to_fp16(high).bits) << 16;
  }
}

inline unsigned pack_e4m3(float first, float second, float third, float fourth) {
  const auto byte = [](float value) { return static_cast<unsigned>(to_e4m3(value).bits); };
  return byte(first) | byte(second) << 8 | byte(third) << 16 | byte(fourth) << 24;
}

inline unsigned infinite_below(unsigned pair) {
  for (int half = 0; half < 2; ++half) {
    if (__uint_as_float(pair >> 16 * half << 16) < -1e30f) {
      pair = (pair & ~(0xffffu << 16 * half)) | 0xff80u << 16 * half;
    }
  }
  return pair;
}

inline void unpack_e4m3(unsigned codes, unsigned& lower, unsigned& upper) {
  const auto number = [&](int i) {
    return to_float(e4m3{static_cast<std::uint8_t>(codes >> (8 * i))});
  };
  lower = pack<DType::fp16>(number(0), number(1));
  upper = pack<DType::fp16>(number(2), number(3));
}

template <DType kElement>
void unpack(unsigned packed, float& low, float& high) {
  if constexpr (kElement == DType::fp16) {
    low = to_float(fp16{static_cast<std::uint16_t>(packed)});
    high = to_float(fp16{static_cast<std::uint16_t>(packed >> 16)});
  } else {
    low = __uint_as_float(packed << 16);
    high = __uint_as_float(packed & 0xffff0000u);
  }
}

inline unsigned round_tf32(float x) { return (__float_as_uint(x) + 0x1000u) & ~0x1fffu; }

inline uint4 to_bits(const unsigned (&r)[4]) { return {r[0], r[1], r[2], r[3]}; }
inline uint4 to_bits(const float (&r)[4]) { return std::bit_cast<uint4>(r); }
template <typename T>
void from_bits(T (&r)[4], const uint4& bits) {
  std::memcpy(r, &bits, sizeof(bits));
}

inline float quad_max(float x) {
  x = std::fmax(x, __shfl_xor_sync(kWholeWarp, x, 1));
  return std::fmax(x, __shfl_xor_sync(kWholeWarp, x, 2));
}
inline float quad_sum(float x) {
  x += __shfl_xor_sync(kWholeWarp, x, 1);
  return x + __shfl_xor_sync(kWholeWarp, x, 2);
}

}  // namespace dfa::ptx
