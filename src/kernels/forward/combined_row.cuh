#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/tile/tile.cuh"

namespace dfa {

// What pieces of a row's keys left, joined by a warp as a tile of keys joins those before it, 32
// pieces at a time:
//   m' = max(m, lse of a piece)    s' = s exp(m - m') + sum exp(lse of a piece - m')
//   o' = o exp(m - m') + sum exp(lse of a piece - m') (o of a piece);    o = o / s, lse = m + log s
// in the order of the pieces. One that no query of the row sees has lse = -inf and o = 0.
template <DType kElement, int kValueDim>
struct CombinedRow {
  static constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  static constexpr int kColumns = 4 * 32;  // of a warp at once
  static constexpr int kParts = (kValueDim + kColumns - 1) / kColumns;

  float most = -ptx::infinity(), sum = 0, of_keys = 1, o[kParts][4] = {};

  // Pieces first to last, each at row place(piece) of the partials.
  template <typename Place>
  DFA_DEVICE void join(const Sm90ForwardArgs& a, int lane, int first, int last,
                       const Place& place) {
    for (int begin = first; begin <= last; begin += 32) {
      const int split = begin + lane < last ? begin + lane : last;
      const int at = place(split);  // of a lane's piece
      const float lse = begin + lane <= last ? a.partials.lse[at] * kLog2E : -ptx::infinity();
      float top = fmaxf(most, lse);
      for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(ptx::kWholeWarp, top, i));
      if (top == -ptx::infinity()) continue;
      const float weight = ptx::exp2(lse - top), kept = ptx::exp2(most - top);
      float weights = weight;
      for (int i = 16; i > 0; i /= 2) weights += __shfl_xor_sync(ptx::kWholeWarp, weights, i);
      most = top;
      sum = fmaf(sum, kept, weights);
      for (auto& four : o) {
        for (float& x : four) x *= kept;
      }
      const int count = last - begin < 32 ? last - begin + 1 : 32;
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const float of_piece = __shfl_sync(ptx::kWholeWarp, weight, i);
        const float* from =
            a.partials.o + static_cast<long long>(__shfl_sync(ptx::kWholeWarp, at, i)) * a.args.d_v;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int column = part * kColumns + 4 * lane;
          if (column >= a.args.d_v) continue;
          const float4 four = *reinterpret_cast<const float4*>(from + column);
          o[part][0] = fmaf(of_piece, four.x, o[part][0]);
          o[part][1] = fmaf(of_piece, four.y, o[part][1]);
          o[part][2] = fmaf(of_piece, four.z, o[part][2]);
          o[part][3] = fmaf(of_piece, four.w, o[part][3]);
        }
      }
    }
  }

  // What a sink leaves of the keys' weights.
  DFA_DEVICE void add_sink(float sink) {
    sink *= kLog2E;
    const float top = fmaxf(most, sink);
    if (top == -ptx::infinity()) return;
    of_keys = ptx::exp2(most - top);
    sum = fmaf(sum, of_keys, ptx::exp2(sink - top));
    most = top;
  }

  DFA_DEVICE bool seen() const { return most != -ptx::infinity(); }
  DFA_DEVICE float lse() const {
    return seen() ? (most + ptx::log2(sum)) * kLn2 : -ptx::infinity();
  }

  // To `to`, where the row begins.
  DFA_DEVICE void store(char* to, int columns, int lane) const {
    const float inverse = seen() ? of_keys / sum : 0.f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int column = part * kColumns + 4 * lane;
      if (column >= columns) continue;
      const float(&four)[4] = o[part];
      *reinterpret_cast<uint2*>(to + bytes_of(kElement) * column) =
          make_uint2(ptx::pack<kElement>(four[0] * inverse, four[1] * inverse),
                     ptx::pack<kElement>(four[2] * inverse, four[3] * inverse));
    }
  }
};

}  // namespace dfa
