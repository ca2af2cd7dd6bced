#pragma once

#include <functional>
#include <string>

#include "dfa/error.h"

namespace dfa::bench {

// One small problem by the kernels of one target (an instruction set, or an architecture of GPUs).
struct SelftestCase {
  enum class Outcome { ok, wrong, refused };
  std::string target{};   // cpu_avx2, cuda_sm90, …
  std::string problem{};  // a problem line: `dfa run --problem LINE --check` repeats it
  Outcome outcome = Outcome::refused;
  double share = 0;    // the worst tensor's error as a share of what is allowed
  std::string text{};  // wrong: the worst element; refused: why, in a sentence
  double seconds = 0;  // kernels compiled, run and checked
};

const char* name_of(SelftestCase::Outcome outcome);  // ok, wrong or refused

struct SelftestCount {
  int ok = 0;
  int wrong = 0;    // a result beyond the bound, or a run that failed
  int refused = 0;  // this target has no kernel for the problem
};

// Holds the kernels of every target that this machine has against attention in fp64, forward and
// backward, in seconds; where a GPU's kernels must be compiled first, in a minute. `each` hears of
// every case; a target that is not there is one case, refused.
SelftestCount selftest(const std::function<void(const SelftestCase&)>& each);

}  // namespace dfa::bench
