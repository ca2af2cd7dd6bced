#pragma once

#include <algorithm>

#include "dfa/problem.h"

namespace dfa {

// A latent cache, whose values are the first columns of keys: by the strides, where rows of values
// lie as far apart as those of keys, and no tensor of their own fits between.
inline bool values_in_keys(const Problem& p) {
  const Strides k = p.k(), v = p.v();
  const std::int64_t apart = p.hk > 1 ? std::min(k.row, k.head) : k.row;
  return p.dv < p.d && k == v && apart < p.d + p.dv;
}

}  // namespace dfa
