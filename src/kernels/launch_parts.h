#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/launch.h"

// What the files behind launch.h share.
namespace dfa::launch_parts {

// What is walked again and again may take of the L2: of 50 MB, as the rest passes through it too.
inline constexpr std::int64_t kL2Share = 32 << 20;
inline constexpr int kRowPadding = 128;  // a multiple of every tile of queries

// Enumerators and types of a configuration's text live in namespace dfa.
std::string qualified(std::string text);

// Of the backward's workspace: the counters of turns, behind all that every backward has.
ZeroedBytes turns_of(const Problem& p, const BackwardConfig& c);

inline std::int64_t tiles(std::int64_t rows, int tile) { return (rows + tile - 1) / tile; }
// Of a head in the backward's workspace; of a packed problem of all sequences of a head.
inline std::int64_t padded_rows(const Problem& p) {
  const std::int64_t rows = p.packed() ? p.total_q + p.b * kRowPadding : p.sq;
  return tiles(rows, kRowPadding) * kRowPadding;
}
inline std::int64_t all_padded_rows(const Problem& p) {
  return p.batches() * p.hq * padded_rows(p);
}
// Tiles of packed sequences' rows there are at most: each may end in one of its own.
inline std::int64_t most_tiles(const Problem& p, std::int64_t total, int rows) {
  return total / rows + p.b;
}
inline unsigned grid(std::int64_t blocks) { return static_cast<unsigned>(blocks); }
inline unsigned count(int value) { return static_cast<unsigned>(value); }
inline KernelStrides strides_of(const Strides& s) { return {s.batch, s.head, s.row}; }

// What works of a backward walk, q, do and the sums of dq: of a row, and of all of a key head's
// with its keys.
inline std::int64_t walked_row_bytes(const Problem& p) {
  return bytes_of(p.dtype) * (p.d + p.dv) +
         static_cast<std::int64_t>(sizeof(float)) * gpu_head_dim(p.d);
}
inline std::int64_t walked_head_bytes(const Problem& p) {
  return walked_row_bytes(p) * (p.hq / p.hk) * p.sq + bytes_of(p.dtype) * (p.d + p.dv) * p.sk;
}

// Hopper's kernels in fp32 (fp32x3_launch.cpp).
std::vector<KernelLaunch> fp32x3_forward_launches(const Problem& p, const ForwardConfig& c);
std::vector<KernelLaunch> fp32x3_backward_launches(const Problem& p, const BackwardConfig& c);
std::size_t fp32x3_forward_bytes(const Problem& p);
std::size_t fp32x3_backward_bytes(const Problem& p, const BackwardConfig& c);

}  // namespace dfa::launch_parts
