#pragma once

#include <cstdint>
#include <vector>

#include "reference/check.h"

namespace dfa {

// Which heads, rows and keys a check looks at. Complete when the problem fits the budget; else
// seeded, always with the first, second and last head, row and key, where mappings, masks and tails
// go wrong first.
struct CheckSample {
  struct HeadIndex {
    std::int64_t b, h;
  };
  std::vector<HeadIndex> heads;    // query heads (forward) or key/value heads (backward)
  std::vector<std::int64_t> rows;  // query rows of each head
  std::vector<std::int64_t> keys;  // keys of each head; backward only
  bool complete = true;
  int orders = 1;  // of summation in which the yardstick is calculated, see check.h
};

CheckSample sample_forward(const Problem& problem, const CheckOptions& options);
CheckSample sample_backward(const Problem& problem, const CheckOptions& options);

}  // namespace dfa
