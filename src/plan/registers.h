#pragma once

#include <algorithm>

#include "spec/config.h"

// Registers that a thread is expected to need: its share of the sums and of one step's scores, and
// some for addresses, statistics and operands on their way.
namespace dfa {

// fp32 operands are twice as wide on their way, and copies of cuda_sm75 pass through registers.
template <typename Config>
constexpr int other_registers(const Config& c) {
  constexpr int kOthers = 40, kOfCopies = 24, kOfBlocks = 24;
  return kOthers + 4 * (bytes_of(c.element) - 2) + (c.target == Target::cuda_sm75 ? kOfCopies : 0) +
         (c.blocks ? kOfBlocks : 0);
}

constexpr int expected_registers(const ForwardConfig& c) {
  constexpr int kOfSequences = 24;  // their places and lengths, or addresses of rows in pages
  constexpr int kOfLogits = 24, kOfPlaces = 16, kOfE4m3 = 4;
  // Dropout counts a packed row within its sequence, beside the addresses of q in shared memory.
  constexpr int kOfBoth = 8;
  if (c.sliced()) return expected_registers(c.of_slice());
  const int q = c.q_in_registers() ? c.head_dim / 2 : 0;
  const int of_splits = (c.split_kv ? kOfPlaces : 0) + (c.kv_e4m3 ? kOfE4m3 : 0);
  return c.warp_rows() * (q + c.value_dim + c.warp_keys()) / 32 + other_registers(c) +
         (c.varlen ? kOfSequences : 0) + of_splits +
         (c.varlen && c.dropout && q == 0 ? kOfBoth : 0) +
         (c.softcap || c.alibi || c.bias || c.text || c.dropout ? kOfLogits : 0);
}

// The walk through slices takes some, and so do addresses that no other loop keeps.
constexpr int registers_of_slices(const BackwardConfig& c) {
  return c.sliced() ? 12 * bytes_of(c.element) : 0;
}

constexpr int expected_registers(const BackwardConfig& c) {
  const int of_scores = c.softcap || c.text ? 3 : 2;  // p, dp and what these leave of ds
  if (c.sliced()) {                                   // dk or dv
    const BackwardConfig slice = c.of_slice();
    const int sums = std::max(slice.head_dim, slice.value_dim);
    return c.warp_rows() * (sums + of_scores * c.block_q) / 32 + other_registers(c) +
           registers_of_slices(c);
  }
  const int sums = c.head_dim + c.value_dim, columns = sums + of_scores * c.block_q;
  // A share of dq follows p and dp; about half of it comes on top.
  const int share = c.dq_serialized() ? c.block_q * c.head_dim / c.threads() : 0;
  // More sums than two of 128 columns leave operands of 4 bytes no room on their way.
  constexpr int kOfWideSums = 16;
  const bool crowded = bytes_of(c.element) == 4 && c.sharing == 1 && sums > 256;
  return c.warp_rows() * columns / c.sharing / 32 + share / 2 + other_registers(c) +
         (crowded ? kOfWideSums : 0);
}

constexpr int expected_dq_registers(const BackwardConfig& c) {
  constexpr int kOfDropout = 24;
  const int of_scores = c.softcap || c.text ? 3 : 2;
  const int columns = c.sliced() ? c.of_slice().head_dim : c.head_dim;
  return c.dq_warp_rows() * (columns + of_scores * c.dq_block_k) / 32 + other_registers(c) +
         registers_of_slices(c) + (c.dropout ? kOfDropout : 0);
}

// Of cuda_sm90: of a thread with queries.
constexpr int expected_sm90_registers(const ForwardConfig& c) {
  constexpr int kOthers = 32, kOfBoth = 8;  // softcap and ALiBi
  constexpr int kBesideSoftcap = 8;         // bits of lists, or what those who copy pages have more
  constexpr int kOfTexts = 16;              // beside what else changes scores or masks
  const int scores = c.block_k / 2, weights = c.block_k / 4, output = c.value_dim / 2;
  return scores + weights + output + c.q_columns_in_regs / 4 + kOthers +
         (c.softcap && c.alibi ? kOfBoth : 0) +
         ((c.blocks || c.paged) && c.softcap ? kBesideSoftcap : 0) +
         (c.text && (c.softcap || c.alibi || c.bias || c.dropout || c.ranges) ? kOfTexts : 0);
}

// Of cuda_sm90 in e4m3: beside the output one part of a step's product of weights and v.
constexpr int expected_e4m3_registers(const ForwardConfig& c) {
  constexpr int kOthers = 32;
  const int scores = c.block_k / 2, weights = c.block_k / 8, output = c.value_dim / 2;
  return scores + weights + output + output / c.value_parts() + kOthers;
}

// Of cuda_sm90 in fp32: of a thread with queries, or with keys.
constexpr int expected_fp32x3_registers(const ForwardConfig& c) {
  constexpr int kOthers = 32;
  const int weights = 3 * c.block_k / 4, output = c.value_dim / 2;
  return weights + output + std::max(c.block_k / 2, output) + kOthers;
}

constexpr int expected_fp32x3_registers(const BackwardConfig& c) {
  constexpr int kOthers = 48;
  const int planes = 3 * c.block_q / 4, widest = std::max(c.head_dim, c.value_dim);
  return widest / 2 + planes + widest / 2 + kOthers;
}

}  // namespace dfa
