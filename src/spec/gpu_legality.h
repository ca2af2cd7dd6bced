#pragma once

#include <vector>

#include "spec/legality.h"

// The rules of legality.h for GPU targets.
namespace dfa {

Verdict check_gpu(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict check_gpu(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// Shared memory that a thread block asks for.
Verdict check_smem(int bytes, const Limits& limits);

// Rows and thread blocks are counted in 32 bits.
Verdict check_varlen(bool varlen, const Problem& p);

// Of cuda_sm90, whose kernels have scores as they come.
Verdict check_plain_logits(const Problem& problem);

Verdict check_lengths(const Problem& problem);

// Loads and stores move 16 bytes, 8 elements.
Verdict check_strides(const Problem& problem);

// Every legal entry of a table of tiles, the one to try first in front.
template <typename Config>
std::vector<Config> gpu_candidates(const Problem& problem, const Limits& limits);

// Registers a thread is expected to need: its share of the sums and of one step's scores, and
// kOtherRegisters for addresses, statistics and operands on their way.
inline constexpr int kOtherRegisters = 40;
int expected_registers(const ForwardConfig& config);
int expected_registers(const BackwardConfig& config);
int expected_dq_registers(const BackwardConfig& config);

}  // namespace dfa
