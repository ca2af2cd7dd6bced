#pragma once

#include <vector>

#include "spec/legality.h"

// The rules of legality.h for Hopper's forward in fp32, whose products are those of bf16 parts.
namespace dfa {

// Is it that kernel's?
constexpr bool is_split(const ForwardConfig& c) {
  return c.target == Target::cuda_sm90 && c.element == DType::fp32;
}

Verdict check_split(const ForwardConfig& config, const Problem& problem, const Limits& limits);

// Every legal entry of a table of tiles, the one to run where nothing was measured in front.
std::vector<ForwardConfig> split_candidates(const Problem& problem, const Limits& limits);

// Registers that a thread with queries is expected to need.
int expected_split_registers(const ForwardConfig& config);

}  // namespace dfa
