#pragma once

#include <vector>

#include "spec/legality.h"
#include "spec/work_parts.h"

// The rules of legality.h for the kernels of Hopper (sm_90a).
namespace dfa {

Verdict check_sm90(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict check_sm90(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// Of both passes: the card, the element type, the dims, lengths and strides.
Verdict check_sm90_problem(DType element, int head_dim, int value_dim, const Problem& problem,
                           const Limits& limits);

// Do plans take Hopper's own kernels for packed sequences? They are right and fast in most calls,
// but on a card some read outside of memory, which was not yet found out (0022): portable ones run.
inline constexpr bool kPackedOnSm90 = false;
inline constexpr const char* kNoPackedOnSm90 =
    "cuda_sm90's kernels of packed sequences have not passed every test on a card";

// Queries of a tile where items are dealt out in shares (ForwardConfig::num_splits).
inline constexpr int kMostSharedQueries = 128;

// Every legal entry of a table of tiles, the one to run where nothing was measured in front.
std::vector<ForwardConfig> sm90_candidates(const Problem& problem, const Limits& limits);

std::vector<BackwardConfig> sm90_backward_candidates(const Problem& problem, const Limits& limits);

// How many works a backward has: the keys of a block, or of a cluster, and of one head.
std::int64_t works_of(const Problem& problem, const BackwardConfig& config);

// Which works are in parts, of pairs that stay on so many multiprocessors
// (BackwardConfig::split_q).
WorkParts work_parts(const Problem& problem, const BackwardConfig& config, int sms);

// Has it a forward, a backward? No, with the reason. Of fp32 too.
Verdict sm90_fits(const Problem& problem, const Limits& limits);
Verdict sm90_backward_fits(const Problem& problem, const Limits& limits);

// Columns of these kernels' tiles: gpu_head_dim(), but at least 64.
int sm90_head_dim(std::int64_t dim);

// Registers that a thread with queries is expected to need, and those that it has.
int expected_sm90_registers(const ForwardConfig& config);
int sm90_registers(const ForwardConfig& config);

}  // namespace dfa
