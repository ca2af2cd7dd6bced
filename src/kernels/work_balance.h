#pragma once

#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"

// Works of a backward as the blocks of a card take them (kernels/schedule/key_work.cuh), on paper.
namespace dfa {

// Steps along the queries that each work of a key head takes, and what it costs beside them.
std::vector<double> work_costs(const Problem& problem, const BackwardConfig& config);

// Work of a pair of blocks, or of a block, on average, over that of who ends last, where heads
// alternate, so many at once, and from one on all: 1 where nobody waits for others at the end.
double work_balance(const std::vector<double>& costs, int heads, int at_once, int last_heads,
                    int blocks);

// From this key head on all that are left alternate. Under a mask the last works begin with the
// longest ones, after which most have nothing to do, unless there are shorter ones of other heads.
// Takes some tenths of a millisecond.
int last_heads(const Problem& problem, const BackwardConfig& config);

}  // namespace dfa
