#pragma once

#include <cstdint>

#include "dfa/problem.h"

// How a tiled kernel walks the score matrix of one head: which tiles it visits.
namespace dfa::analysis {

struct Walk {
  double blocks = 0;  // outer blocks
  double inner = 0;   // rows of the inner operand read, summed over the outer blocks
  double pairs = 0;   // (query, key) pairs in the visited tiles
};

// Outer blocks of queries, inner blocks of keys: the forward. Throws InvalidArgument beyond 2^24
// outer blocks, and on blocks below 1.
Walk walk_queries(const Mask& mask, std::int64_t sq, std::int64_t sk, int block_q, int block_k);
// Where the problem has lists of blocks, in the mean of its heads.
Walk walk_queries(const Problem& p, int block_q, int block_k);

// Outer blocks of keys, inner blocks of queries: the backward.
Walk walk_keys(const Mask& mask, std::int64_t sq, std::int64_t sk, int block_q, int block_k);
Walk walk_keys(const Problem& p, int block_q, int block_k);

}  // namespace dfa::analysis
