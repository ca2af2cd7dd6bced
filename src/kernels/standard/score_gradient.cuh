#pragma once

#include "kernels/standard/score_row.cuh"

// The softmax's backward over a row of P and one of dP: delta = sum of P dP, dS = P (dP - delta).
// A row that sees one key gets 0, exactly: P is 1 and delta is dP.
namespace dfa {

template <DType kElement, int kLanes>
__global__ void standard_score_gradient(const __grid_constant__ ScoreArgs args) {
  constexpr int kVectors = kScoresHeld / 4;
  constexpr bool kRest = kLanes == kMostRowLanes;  // of the row, which no thread holds
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const long long index =
      static_cast<long long>(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  if (index >= args.rows)
    return;  // a whole warp: where a row has more, the block has that row alone
  const float* const probabilities = args.scores + index * args.row_stride;
  float* const gradients = args.gradients + index * args.row_stride;
  const SeenKeys seen(args, index);
  const auto key_of = [lane](int vector) { return 4 * (lane + vector * kLanes); };
  // For any lane: short rows skip what they do not have.
  const auto exists = [&args](int vector) { return 4 * vector * kLanes < args.sk; };

  float delta = 0;
  const auto load = [&](float(&p)[4], float(&dp)[4], int key) {
    load_seen<kElement>(p, probabilities, key, seen, 0);
    load_seen<DType::fp32>(dp, gradients, key, seen, 0);
  };
  const auto take_delta = [&delta](const float(&p)[4], const float(&dp)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) delta = fmaf(p[i], dp[i], delta);
  };
  float p[kVectors][4], dp[kVectors][4], p_rest[4], dp_rest[4];
#pragma unroll
  for (int v = 0; v < kVectors && exists(v); ++v) load(p[v], dp[v], key_of(v));
#pragma unroll  // when all are on their way
  for (int v = 0; v < kVectors && exists(v); ++v) take_delta(p[v], dp[v]);
  if constexpr (kRest) {
    for (int v = kVectors; key_of(v) < args.sk; ++v) {
      load(p_rest, dp_rest, key_of(v));
      take_delta(p_rest, dp_rest);
    }
  }
  delta = over_row<Total, kLanes>(delta);

  const auto store = [&](const float(&p_of)[4], const float(&dp_of)[4], int key) {
    float ds[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) ds[i] = p_of[i] * (dp_of[i] - delta);
    if (key < args.sk) store_rounded<kElement>(gradients, key, ds);
  };
#pragma unroll
  for (int v = 0; v < kVectors && exists(v); ++v) store(p[v], dp[v], key_of(v));
  if constexpr (kRest) {
    for (int v = kVectors; exists(v); ++v) {
      load(p_rest, dp_rest, key_of(v));
      __syncthreads();  // results lie before what is still to be read, of every thread
      store(p_rest, dp_rest, key_of(v));
    }
  }
}

}  // namespace dfa
