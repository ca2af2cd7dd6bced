#pragma once

#include <cstdint>
#include <vector>

#include "dfa/problem.h"
#include "spec/config.h"
#include "spec/split_q.h"

// In which order and in which parts the work tiles of Hopper's kernels are taken: chosen on paper
// for the configuration that was selected.
namespace dfa {

// Forward: heads (of packed ones) whose k and v fit the share of the L2 together, one at least.
int fitting_heads(const Problem& problem, const ForwardConfig& config);

// Backward: how many work tiles there are, the keys of a block, or of a cluster, and of one head.
std::int64_t work_tiles_of(const Problem& problem, const BackwardConfig& config);

// Which of them are cut along their queries, of pairs that stay on so many multiprocessors
// (BackwardConfig::split_q).
SplitQ select_split_q(const Problem& problem, const BackwardConfig& config, int sms);

// Key heads whose blocks run at once where dq is serialized on cuda_sm90, kSm90HeadsAtOnce of them.
// In 16 bits fewer where what blocks walk of 8 heads does not stay in the L2 until the next blocks
// of these heads do; under a mask more for pairs of blocks, where short heads stay there whole.
// With sums as they come that are rounded in the same grid: those of a round of work tiles.
int select_head_swizzle(const Problem& problem, const BackwardConfig& config);

// Where sums of dq are zeroed and rounded in the same grid: blocks zero those of so many key heads
// later, or of their own (0).
int select_heads_zeroed_ahead(const Problem& problem, const BackwardConfig& config);

// From this key head on all that are left alternate. Under a mask the last work tiles begin with
// the longest ones, after which most have nothing to do, unless there are shorter ones of other
// heads. Takes some tenths of a millisecond.
int select_tail_heads(const Problem& problem, const BackwardConfig& config);

// Blocks behind which dq is rounded in the same grid, so that its sums are mostly complete.
int select_blocks_behind(const BackwardConfig& config);

// Clusters of the kernel of dk and dv that take works on so many multiprocessors where they stay
// (BackwardConfig::persistent); 0 where not.
int select_persistent_clusters(const Problem& problem, const BackwardConfig& config, int sms);

// Steps along the queries that each work tile of a key head takes, and what it costs beside them.
std::vector<double> backward_tile_costs(const Problem& problem, const BackwardConfig& config);

// Work of a pair of blocks, or of a block, on average, over that of who ends last, where heads
// alternate, so many at once, and from one on all: 1 where nobody waits for others at the end.
double backward_tile_balance(const std::vector<double>& costs, int heads, int at_once,
                             int tail_heads, int blocks);

}  // namespace dfa
