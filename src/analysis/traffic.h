#pragma once

#include <string>
#include <vector>

#include "analysis/machine.h"
#include "dfa/problem.h"
#include "spec/config.h"

// Bytes between the processor and its main memory, step by step.
namespace dfa::analysis {

struct Transfer {
  std::string what;
  double read_bytes = 0;
  double write_bytes = 0;
};

struct Traffic {
  std::vector<Transfer> steps;

  double read_bytes() const;
  double write_bytes() const;
  double bytes() const { return read_bytes() + write_bytes(); }
};

// Extra passes over the score matrix that a training run with separate kernels makes.
struct StandardPasses {
  bool additive_mask = false;  // S + mask, written back; its gradient is the identity
  bool dropout = false;        // P to a dropped P and a byte mask; the backward applies the mask
};

// Every step is a kernel of its own: it reads its operands once and writes its result once.
Traffic standard_forward(const Problem& problem, const StandardPasses& passes = {});
Traffic standard_backward(const Problem& problem, const StandardPasses& passes = {});

// Where a tile that is read again comes from: main memory, or a cache that kept it.
enum class Reread : int { memory, cache };

// q and o once; k and v for every block of queries, or once where a cache keeps them; lse. The bias
// of tiles that are visited: for every head, or as it is stored where a cache keeps it.
Traffic flash_forward(const Problem& problem, const ForwardConfig& config, Reread reread);

// k, v, dk and dv once; q, do, lse, delta and the fp32 sums of dq for every block of keys.
Traffic flash_backward(const Problem& problem, const BackwardConfig& config, Reread reread);

// Does the shared cache hold what the heads in flight read again? One block a unit is in flight.
Reread reread_of(const Problem& problem, const ForwardConfig& config, const Machine& machine);
Reread reread_of(const Problem& problem, const BackwardConfig& config, const Machine& machine);

// The published asymptotic counts for all heads, in elements, with the constant taken as one.
struct IoComplexity {
  double sram_elements = 0;  // M
  double standard = 0;       // N d + N^2
  double flash = 0;          // N^2 d^2 / M
  bool in_range = false;     // the theorem is for d <= M <= N d
};

// d is the mean of d and dv, N d + N^2 is (sq + sk) d / 2 + sq sk where the sizes differ.
IoComplexity io_complexity(const Problem& problem, std::int64_t sram_bytes);

}  // namespace dfa::analysis
