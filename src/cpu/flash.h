#pragma once

#include <cstddef>
#include <string>

#include "dfa/attention.h"
#include "spec/config.h"

// FlashAttention over all heads: what the engine of a target does for one tile, done for every
// (batch, head, block) on threads, with one workspace.
namespace dfa::cpu {

std::size_t flash_forward_workspace(const Problem& problem, const ForwardConfig& config,
                                    int threads);
std::size_t flash_backward_workspace(const Problem& problem, const BackwardConfig& config,
                                     int threads);

void flash_forward(const Problem& problem, const ForwardConfig& config, int threads,
                   const ForwardArgs& args);
void flash_backward(const Problem& problem, const BackwardConfig& config, int threads,
                    const BackwardArgs& args);

}  // namespace dfa::cpu
