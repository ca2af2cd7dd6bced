#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/launch.h"
#include "plan/steps.h"

// What the files behind launch.h share.
namespace dfa::launch_parts {

inline constexpr int kRowPadding = 128;  // a multiple of every tile of queries

// Enumerators and types of a configuration's text live in namespace dfa.
std::string qualified(std::string text);

// Of the backward's workspace: the dq semaphores, behind all that every backward has.
ZeroedBytes dq_semaphores_of(const Problem& p, const BackwardConfig& c);

// Of a head in the backward's workspace; of a packed problem of all sequences of a head.
inline std::int64_t padded_rows(const Problem& p) {
  const std::int64_t rows = p.packed() ? p.total_q + p.b * kRowPadding : p.sq;
  return tiles_of(rows, kRowPadding) * kRowPadding;
}
inline std::int64_t all_padded_rows(const Problem& p) {
  return p.batches() * p.hq * padded_rows(p);
}
// Tiles of packed sequences' rows there are at most: each may end in one of its own.
inline std::int64_t most_tiles(const Problem& p, std::int64_t total, int rows) {
  return total / rows + p.b;
}

inline std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows of a tile in the lists of packed sequences: those of the kernels that walk them.
inline int q_list_rows(const ForwardConfig& c) {
  return c.split_kv ? c.block_q / c.query_rows() : c.block_q;
}
inline int q_list_rows(const BackwardConfig&) { return kRowPadding; }
inline int k_list_rows(const ForwardConfig&) { return 0; }  // walks none
inline int k_list_rows(const BackwardConfig& c) { return c.cluster_keys(); }

// Ahead of the lists in the workspace: how many tiles these hold.
inline constexpr std::size_t kTileCountBytes = 64;

// Few sequences have wide gaps where they have any.
inline int gap_slices(const Problem& p) {
  return static_cast<int>(std::clamp<std::int64_t>(256 / p.b, 1, 16));
}

// Of ForwardConfig::split_kv (split_kv_launch.cpp).
std::vector<KernelLaunch> split_kv_launches(const Problem& p, const ForwardConfig& c);
std::size_t split_kv_bytes(const Problem& p, const ForwardConfig& c);

inline unsigned grid(std::int64_t blocks) { return static_cast<unsigned>(blocks); }
inline unsigned count(int value) { return static_cast<unsigned>(value); }
inline KernelStrides strides_of(const Strides& s) { return {s.batch, s.head, s.row}; }

// Hopper's kernels in fp32 (fp32x3_launch.cpp).
std::vector<KernelLaunch> fp32x3_forward_launches(const Problem& p, const ForwardConfig& c);
std::vector<KernelLaunch> fp32x3_backward_launches(const Problem& p, const BackwardConfig& c);
std::size_t fp32x3_forward_bytes(const Problem& p);
std::size_t fp32x3_backward_bytes(const Problem& p, const BackwardConfig& c);

// Hopper's forward in e4m3 (e4m3_launch.cpp).
std::vector<KernelLaunch> e4m3_forward_launches(const Problem& p, const ForwardConfig& c);
std::size_t e4m3_forward_bytes(const Problem& p, const ForwardConfig& c);

// Of a forward: of all heads, tiles of queries.
std::int64_t all_work_tiles(const Problem& problem, const ForwardConfig& config);

}  // namespace dfa::launch_parts
