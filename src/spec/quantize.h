#pragma once

#include <cstdint>
#include <vector>

#include "dfa/attention.h"

namespace dfa {

// The factors of one problem's tensors, [b, hk, blocks of rows], or [hk] where it is packed; empty:
// 1.
struct HostDescales {
  std::vector<float> q, k, v;
};

// A tensor's sizes in memory and its strides.
struct Quantizable {
  Strides strides;
  std::int64_t b, heads, rows, columns;
  std::int64_t group = 1;  // heads that share a factor: hq / hk of q
  bool by_batch = true;    // have batches factors of their own?
  std::int64_t block = 0;  // rows that share a factor; 0: all
};
Quantizable quantizable_q(const Problem& problem);
Quantizable quantizable_k(const Problem& problem);
Quantizable quantizable_v(const Problem& problem);

// Rounds `from`, fp32 in the tensor's strides, to e4m3 at the same places of `to`, so that the
// largest number of each batch, key head and block of rows becomes 448. Returns the factors that
// undo that; 1 where all is 0.
std::vector<float> quantize(const float* from, const Quantizable& tensor, void* to);

// As a call takes them, of pointers to factors on any device; null: 1.
Descales descales_of(const Problem& problem, const float* q, const float* k, const float* v);

inline Descales descales_of(const Problem& problem, const HostDescales& host) {
  const auto data = [](const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
  };
  return descales_of(problem, data(host.q), data(host.k), data(host.v));
}

}  // namespace dfa
