#pragma once

#include <string>
#include <vector>

#include "dfa/error.h"
#include "dfa/problem.h"
#include "spec/config.h"

// Which configurations may run which problem, as plain rules with reasons. Pure: no device is
// asked.
namespace dfa {

// Of the card that kernels are compiled for ahead, where no device is asked: an H100 or H200.
inline constexpr int kUsualMultiprocessors = 132;

// What the machine offers, as far as legality needs it.
struct Limits {
  Target highest = Target::cpu_portable;  // every target up to this one is there, of its kind
  long long cache_bytes = 1LL << 20;      // private cache of one core (L2)
  // Of a GPU, when `highest` is one's: shared memory a thread block may ask for, and that of one
  // multiprocessor, of which every block costs kBlockSmemBytes more than it asks for.
  int smem_bytes = 0;
  int multiprocessor_smem_bytes = 0;
  int sm_count = kUsualMultiprocessors;  // that kernels may use: of a card, or of a part of one
};

inline constexpr int kBlockSmemBytes = 1024;
inline constexpr int kMultiprocessorRegisters = 65536;

// Limits of the architectures there are, 10 * major + minor; 80 for one that is not listed.
Limits gpu_limits(int architecture);

Verdict check(const ForwardConfig& config, const Problem& problem, const Limits& limits);
Verdict check(const BackwardConfig& config, const Problem& problem, const Limits& limits);

// `base` with what `text` says on top, if it is legal. Text that names a type serves that type
// only, plain "field=value" text serves both. Throws InvalidArgument with check()'s reason.
ForwardConfig legal_config(const std::string& text, const ForwardConfig& base,
                           const Problem& problem, const Limits& limits);
BackwardConfig legal_config(const std::string& text, const BackwardConfig& base,
                            const Problem& problem, const Limits& limits);

// Every legal configuration from a fixed grid of tiles, for the problem's element type and dims.
std::vector<ForwardConfig> forward_candidates(const Problem& problem, const Limits& limits);
std::vector<BackwardConfig> backward_candidates(const Problem& problem, const Limits& limits);

// The GPU configuration to run with where nothing was measured. When check() refuses it, no
// configuration is legal and its reason is the problem's.
ForwardConfig default_gpu_forward(const Problem& problem, const Limits& limits);
// The same among the kernels of the target that `text`, as of legal_config(), names, and the first
// that is legal with what it says.
ForwardConfig gpu_forward_base(const std::string& text, const Problem& problem,
                               const Limits& limits);
BackwardConfig default_gpu_backward(const Problem& problem, const Limits& limits);
BackwardConfig gpu_backward_base(const std::string& text, const Problem& problem,
                                 const Limits& limits);

}  // namespace dfa
