#pragma once

#include <cstdint>

#include "dfa/attention.h"

namespace dfa {

inline float descale_of(const Descale& descale, std::int64_t b, std::int64_t hk,
                        std::int64_t block = 0) {
  return descale.values == nullptr
             ? 1.0f
             : descale.values[b * descale.batch + hk * descale.head + block * descale.block];
}

// Factors of so many rows of a batch and key head.
inline std::int64_t descale_blocks(const Problem& p, std::int64_t rows) {
  return p.descale_rows == 0 ? 1 : (rows + p.descale_rows - 1) / p.descale_rows;
}

// Of one sequence of a packed problem, which is a batch of its own.
inline Descale of_sequence(Descale descale, std::int64_t sequence) {
  if (descale.values != nullptr) descale.values += sequence * descale.batch;
  return descale;
}

inline Descales of_sequence(const Descales& all, std::int64_t sequence) {
  return {of_sequence(all.q, sequence), of_sequence(all.k, sequence), of_sequence(all.v, sequence)};
}

}  // namespace dfa
