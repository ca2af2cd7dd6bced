#pragma once

#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/limits.h"

// Decode: kernels that cut keys into splits on the device (ForwardConfig::split_kv).
namespace dfa {

// Are sequences' queries so few that such a kernel can be the first to take?
bool has_few_queries(const Problem& problem);

// Is it the first? Of packed sequences with few queries; of dense ones where keys are many enough
// as well. Batch-invariant problems of pages take it for prompts too: a decode step has the same
// bits alone and beside a prompt.
bool split_kv_is_first(const Problem& problem);

// Every legal one, the fastest first.
std::vector<ForwardConfig> split_kv_candidates(const Problem& problem, const Limits& limits);

// Of cuda_sm90 with heads above kMostColumns: packed sequences of few queries, and all keys in
// pages. And its configuration, from one that splits no keys.
bool takes_sliced_split_kv(const Problem& problem);
ForwardConfig with_sliced_split_kv(ForwardConfig config, const Problem& problem,
                                   const Limits& limits);

}  // namespace dfa
