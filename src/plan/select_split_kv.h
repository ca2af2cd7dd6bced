#pragma once

#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/limits.h"

// Decode: kernels that cut keys into splits on the device (ForwardConfig::split_kv).
namespace dfa {

// Are sequences' queries so few that such a kernel is the first to take?
bool has_few_queries(const Problem& problem);

// Those, and batch-invariant ones of pages, which take it for prompts as well: a decode step has
// the same bits alone and beside a prompt.
bool split_kv_is_first(const Problem& problem);

// Dense queries of few rows: Hopper's kernels run them, or on other cards whole tiles, until a card
// has shown that splits dealt out on the device are right and faster there. Until then they are no
// candidates, and refused where they are asked for.
inline constexpr bool kDenseSplitKvOnGpu = false;

// Every legal one, the fastest first.
std::vector<ForwardConfig> split_kv_candidates(const Problem& problem, const Limits& limits);

}  // namespace dfa
