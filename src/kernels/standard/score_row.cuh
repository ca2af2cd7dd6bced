#pragma once

#include "kernels/ptx/arithmetic.cuh"
#include "kernels/softmax/tile_mask.h"
#include "kernels/standard/args.h"

// A row of scores and the kLanes threads that share it: thread t has the vectors of four scores
// t, t + kLanes, …, of which the first few stay in its registers from the first pass to the last.
namespace dfa {

// Keys that a query sees.
struct SeenKeys {
  int begin, end;

  DFA_DEVICE SeenKeys(const ScoreArgs& args, long long row) {
    const TileMask mask{args.left, args.right, args.sq, args.sk};
    const int query = static_cast<int>(row % args.sq);
    begin = mask.key_begin(query);
    end = mask.key_end(query);
  }
  DFA_DEVICE bool any() const { return begin < end; }
  DFA_DEVICE bool sees(int key) const { return begin <= key && key < end; }
  DFA_DEVICE bool sees_all(int key) const { return begin <= key && key + 4 <= end; }
};

// Four elements from `key` on, `hidden` in place of those not seen, which are not read.
template <DType kElement>
DFA_DEVICE void load_seen(float (&x)[4], const void* row, int key, const SeenKeys& seen,
                          float hidden) {
  if constexpr (bytes_of(kElement) == 4) {
    const float* from = static_cast<const float*>(row) + key;
    if (seen.sees_all(key)) {
      ptx::from_bits(x, *reinterpret_cast<const uint4*>(from));
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = seen.sees(key + i) ? from[i] : hidden;
  } else {
    const unsigned short* from = static_cast<const unsigned short*>(row) + key;
    uint2 bits = make_uint2(0, 0);
    if (seen.sees_all(key)) {
      bits = *reinterpret_cast<const uint2*>(from);
    } else {
      bits.x = (seen.sees(key) ? from[0] : 0u) | (seen.sees(key + 1) ? from[1] << 16 : 0u);
      bits.y = (seen.sees(key + 2) ? from[2] : 0u) | (seen.sees(key + 3) ? from[3] << 16 : 0u);
    }
    ptx::unpack<kElement>(bits.x, x[0], x[1]);
    ptx::unpack<kElement>(bits.y, x[2], x[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = seen.sees(key + i) ? x[i] : hidden;
  }
}

// To 10 bits of mantissa, to nearest even; infinities and NaN stay.
DFA_DEVICE float round_to_tf32(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

template <DType kElement>
DFA_DEVICE unsigned round_pair(float low, float high) {
  if constexpr (kElement == DType::bf16) return ptx::pack<DType::bf16>(low, high);
  unsigned packed;  // one at a time: sm_75 has no instruction for two
  asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
      : "=r"(packed)
      : "f"(low), "f"(high));
  return packed;
}

// Four results, rounded, at the place of element `key` of a row of results.
template <DType kElement>
DFA_DEVICE void store_rounded(void* row, int key, const float (&x)[4]) {
  if constexpr (bytes_of(kElement) == 2) {
    *reinterpret_cast<uint2*>(static_cast<unsigned short*>(row) + key) =
        make_uint2(round_pair<kElement>(x[0], x[1]), round_pair<kElement>(x[2], x[3]));
  } else {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = kElement == DType::tf32 ? round_to_tf32(x[i]) : x[i];
    *reinterpret_cast<uint4*>(static_cast<float*>(row) + key) = ptx::to_bits(y);
  }
}

struct Maximum {
  static DFA_DEVICE float of(float a, float b) { return fmaxf(a, b); }
};
struct Total {
  static DFA_DEVICE float of(float a, float b) { return a + b; }
};

// Over the threads of a row, in an order that never changes. Every thread gets the result.
template <class Operation, int kLanes>
DFA_DEVICE float over_row(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x = Operation::of(x, __shfl_xor_sync(ptx::kWholeWarp, x, step));
  }
  if constexpr (kLanes > 32) {
    __shared__ float parts[kLanes / 32];
    __syncthreads();  // the last reduction's parts are read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int i = 1; i < kLanes / 32; ++i) x = Operation::of(x, parts[i]);
  }
  return x;
}

}  // namespace dfa
