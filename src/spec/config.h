#pragma once

#include "dfa/dtype.h"
#include "spec/target.h"

// Kernel configurations: plain values shared by the host compiler, nvcc and NVRTC, so nothing but
// include-free headers may be included here. The same value is template argument, cache key, log
// line and JSON field.
namespace dfa {

constexpr int round_up(int value, int step) { return (value + step - 1) / step * step; }

// Tile configuration of a FlashAttention forward kernel.
struct ForwardConfig {
  Target target = Target::cpu_portable;
  DType element = DType::fp32;
  int head_dim = 64;   // d
  int value_dim = 64;  // dv
  int block_q = 64;    // query rows of a tile
  int block_k = 64;    // keys of a tile

  // fp32 values one tile keeps in cache: scores, accumulator, and one tile each of q, k and v.
  constexpr long long tile_bytes() const {
    const long long scores = 4LL * block_q * block_k;
    const long long output = 4LL * block_q * value_dim;
    const long long inputs =
        static_cast<long long>(bytes_of(element)) *
        (1LL * block_q * head_dim + 1LL * block_k * head_dim + 1LL * block_k * value_dim);
    return scores + output + inputs;
  }

  friend constexpr bool operator==(const ForwardConfig&, const ForwardConfig&) = default;
};

// Tile configuration of a FlashAttention backward kernel, which walks queries for a block of keys.
struct BackwardConfig {
  Target target = Target::cpu_portable;
  DType element = DType::fp32;
  int head_dim = 64;
  int value_dim = 64;
  int block_q = 64;
  int block_k = 64;

  // scores, their gradient, dk, dv and the tiles of q, k, v, do, dq that one step touches.
  constexpr long long tile_bytes() const {
    const long long scores = 2 * 4LL * block_q * block_k;
    const long long sums = 4LL * block_k * (head_dim + value_dim) + 4LL * block_q * head_dim;
    const long long inputs =
        static_cast<long long>(bytes_of(element)) * (block_q + block_k) * (head_dim + value_dim);
    return scores + sums + inputs;
  }

  friend constexpr bool operator==(const BackwardConfig&, const BackwardConfig&) = default;
};

}  // namespace dfa
