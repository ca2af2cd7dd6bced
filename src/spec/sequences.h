#pragma once

#include <cstdint>
#include <vector>

#include "dfa/attention.h"
#include "dfa/problem.h"

// Packed sequences on the host: where each lies, by pointers that can be read here.
namespace dfa {

struct SequencePlace {
  std::int64_t q_begin = 0, q_rows = 0;
  std::int64_t k_begin = 0, k_rows = 0;
};

// Throws InvalidArgument where a pointer is missing, begins fall or leave the tensors, or a
// sequence has more rows than its place or than sq or sk. Of a paged problem k_begin counts the
// rows of a sequence's pages, and an entry of the table that is looked at is a page of the cache.
std::vector<SequencePlace> places_of(const Problem& packed, const Sequences& sequences);

// The first row of k that a query of the sequence sees.
std::int64_t first_seen(const Problem& packed, const SequencePlace& place);

}  // namespace dfa
