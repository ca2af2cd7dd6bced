#pragma once

#include "kernels/standard/score_row.cuh"

// The safe softmax in three passes over a row of S: the maximum, the sum of exponentials, P. Of
// keys that the mask hides, P is 0; a row that sees none is 0 and its lse -inf.
namespace dfa {

template <DType kElement, int kLanes>
__global__ void standard_softmax(const __grid_constant__ ScoreArgs args) {
  constexpr int kVectors = kScoresHeld / 4;
  constexpr bool kRest = kLanes == kMostRowLanes;  // of the row, which no thread holds
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const long long index =
      static_cast<long long>(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  if (index >= args.rows)
    return;  // a whole warp: where a row has more, the block has that row alone
  float* const row = args.scores + index * args.row_stride;
  const SeenKeys seen(args, index);
  const auto key_of = [lane](int vector) { return 4 * (lane + vector * kLanes); };
  // For any lane: short rows skip what they do not have.
  const auto exists = [&args](int vector) { return 4 * vector * kLanes < args.sk; };

  float held[kVectors][4], x[4];
  float maximum = -ptx::infinity();
  const auto take_maximum = [&maximum](const float(&s)[4]) {
    maximum = fmaxf(maximum, fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])));
  };
#pragma unroll
  for (int v = 0; v < kVectors && exists(v); ++v) {
    load_seen<DType::fp32>(held[v], row, key_of(v), seen, -ptx::infinity());
  }
#pragma unroll  // when all are on their way: 4.1 TB/s instead of 3.0
  for (int v = 0; v < kVectors && exists(v); ++v) take_maximum(held[v]);
  if constexpr (kRest) {
    for (int v = kVectors; key_of(v) < args.sk; ++v) {
      load_seen<DType::fp32>(x, row, key_of(v), seen, -ptx::infinity());
      take_maximum(x);
    }
  }
  maximum = seen.any() ? over_row<Maximum, kLanes>(maximum) : 0;

  float sum = 0;
  const auto exponentials = [maximum](float(&s)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = expf(s[i] - maximum);
  };
  const auto take_sum = [&sum](const float(&e)[4]) { sum += (e[0] + e[1]) + (e[2] + e[3]); };
#pragma unroll
  for (int v = 0; v < kVectors && exists(v); ++v) {
    exponentials(held[v]);
    take_sum(held[v]);
  }
  if constexpr (kRest) {
    for (int v = kVectors; key_of(v) < args.sk; ++v) {
      load_seen<DType::fp32>(x, row, key_of(v), seen, -ptx::infinity());
      exponentials(x);
      take_sum(x);
    }
  }
  sum = over_row<Total, kLanes>(sum);

  const float inverse = seen.any() ? 1 / sum : 0;
  const auto store = [&](const float(&e)[4], int key) {
    const float p[4] = {e[0] * inverse, e[1] * inverse, e[2] * inverse, e[3] * inverse};
    if (key < args.sk) store_rounded<kElement>(row, key, p);
  };
#pragma unroll
  for (int v = 0; v < kVectors && exists(v); ++v) store(held[v], key_of(v));
  if constexpr (kRest) {
    for (int v = kVectors; exists(v); ++v) {
      load_seen<DType::fp32>(x, row, key_of(v), seen, -ptx::infinity());
      exponentials(x);
      __syncthreads();  // results lie before what is still to be read, of every thread
      store(x, key_of(v));
    }
  }
  if (lane == 0 && args.lse != nullptr) {
    args.lse[index] = seen.any() ? maximum + logf(sum) : -ptx::infinity();
  }
}

}  // namespace dfa
