#pragma once

#include <algorithm>
#include <cstdint>

#include "dfa/problem.h"
#include "spec/blocks.h"
#include "spec/passes.h"

// The one place that says how many operations attention is. A multiply-add counts as two; only the
// matrix products count, the softmax does not.
namespace dfa {

namespace flops_detail {

// Sum of clamp(x, 0, limit) over x in [first, first + count).
constexpr double sum_of_clamped(std::int64_t first, std::int64_t count, std::int64_t limit) {
  const std::int64_t end = first + count;
  const std::int64_t rise = std::clamp<std::int64_t>(first, 0, limit);
  const std::int64_t top = std::clamp<std::int64_t>(end, 0, limit);
  const double slope = static_cast<double>(top - rise) * static_cast<double>(rise + top - 1) / 2.0;
  const std::int64_t above = std::max<std::int64_t>(0, end - std::max(first, limit));
  return slope + static_cast<double>(above) * static_cast<double>(limit);
}

}  // namespace flops_detail

namespace flops_detail {

constexpr double pairs_of_window(const Mask& mask, std::int64_t sq, std::int64_t sk) {
  const std::int64_t shift = sk - sq;
  const double ends = mask.right < 0 ? static_cast<double>(sq) * static_cast<double>(sk)
                                     : sum_of_clamped(shift + mask.right + 1, sq, sk);
  return ends - (mask.left < 0 ? 0.0 : sum_of_clamped(shift - mask.left, sq, sk));
}

// Queries and keys of a chunk end at one position, as all do: each chunk is a small problem of a
// window. Those between the first and the last are alike.
constexpr double pairs_of_chunks(const Mask& mask, std::int64_t sq, std::int64_t sk) {
  const std::int64_t start = sk - sq > 0 ? sk - sq : 0, size = mask.chunk;
  const std::int64_t first = start / size, last = (sk - 1) / size;
  const auto pairs = [&](std::int64_t of) {
    const std::int64_t begin = of * size, end = std::min(begin + size, sk);
    return pairs_of_window(mask, end - std::max(begin, start), end - begin);
  };
  if (first == last) return pairs(first);
  const std::int64_t between = last - first - 1;
  return pairs(first) + pairs(last) +
         (between > 0 ? static_cast<double>(between) * pairs_of_window(mask, size, size) : 0.0);
}

// Keys of the prefix that the causal mask hides.
constexpr double pairs_of_prefix(const Mask& mask, std::int64_t sq, std::int64_t sk) {
  const std::int64_t keys = std::min<std::int64_t>(mask.prefix, sk);
  return static_cast<double>(sq) * static_cast<double>(keys) -
         sum_of_clamped(sk - sq + 1, sq, keys);
}

}  // namespace flops_detail

// (query, key) pairs of one head that the mask lets through; exact while sq * sk < 2^53.
constexpr double visible_pairs(const Mask& mask, std::int64_t sq, std::int64_t sk) {
  if (mask.chunk > 0) return flops_detail::pairs_of_chunks(mask, sq, sk);
  return flops_detail::pairs_of_window(mask, sq, sk) +
         (mask.prefix > 0 ? flops_detail::pairs_of_prefix(mask, sq, sk) : 0.0);
}

// Likewise of a problem, in the mean of its heads; 0 where it has lists of blocks that are not
// known.
inline double visible_pairs(const Problem& p) {
  return p.blocks ? pairs_of_blocks(p) : visible_pairs(p.mask, p.sq, p.sk);
}

// Some masks hide nothing: of a single query under a causal one, say.
inline bool hides_keys(const Problem& p) {
  return p.blocks.has_value() ||
         visible_pairs(p.mask, p.sq, p.sk) < static_cast<double>(p.sq) * static_cast<double>(p.sk);
}

// The pairs that published rates are divided by: half of sq * sk for a causal square (the diagonal
// counts as half), the visible pairs for everything else.
constexpr double counted_pairs(const Mask& mask, std::int64_t sq, std::int64_t sk) {
  if (mask.is_causal() && sq == sk) return static_cast<double>(sq) * static_cast<double>(sk) / 2.0;
  return visible_pairs(mask, sq, sk);
}

// Those of all sequences, or batches, of one head. Of packed sequences whose lengths are not known
// ahead nothing is counted, nor of lists of blocks: 0.
inline double counted_pairs(const Problem& p) {
  if (p.blocks) return static_cast<double>(p.b) * pairs_of_blocks(p);
  if (!p.packed()) return static_cast<double>(p.b) * counted_pairs(p.mask, p.sq, p.sk);
  double pairs = 0;
  for (std::size_t i = 0; i < p.lens_q.size(); ++i) {
    pairs += counted_pairs(p.mask, p.lens_q[i], p.lens_k[i]);
  }
  return pairs;
}

// q k^T (d) and P v (dv): 4 b hq sq sk d when d = dv and nothing is masked.
inline double forward_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.hq) * counted_pairs(p) * static_cast<double>(p.d + p.dv);
}

// q k^T again, dq and dk (d each), do v^T and dv (dv each): 2.5 times the forward when d = dv.
inline double backward_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.hq) * counted_pairs(p) *
         static_cast<double>(3 * p.d + 2 * p.dv);
}

// Those of the passes that the problem asks for.
inline double asked_flops(const Problem& p) {
  return (has_forward(p) ? forward_flops(p) : 0) + (has_backward(p) ? backward_flops(p) : 0);
}

}  // namespace dfa
