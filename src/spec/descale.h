#pragma once

#include <cstdint>

#include "dfa/attention.h"

namespace dfa {

inline float descale_of(const Descale& descale, std::int64_t b, std::int64_t hk) {
  return descale.values == nullptr ? 1.0f : descale.values[b * descale.batch + hk * descale.head];
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
