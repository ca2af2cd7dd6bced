#pragma once

#include <cstdint>
#include <memory>

#include "dfa/attention.h"

namespace dfa {

// What the machine can do at most, measured: the roofs of a roofline. Zero: not measured.
struct Ceilings {
  int threads = 1;
  double fp32_flops = 0;  // per second, multiply-add counted as two
  double fp16_flops = 0;
  double bf16_flops = 0;
  double copy_bytes = 0;  // per second, read plus write, far beyond the caches
};

// Holds rows of o against attention in fp32 or better on the problem's inputs, whatever type the
// call read those in.
class RowsCheck {
 public:
  virtual ~RowsCheck() = default;
  // Of rows drawn by the seed, after all that is queued before: the largest difference of an
  // element; infinite where one is not finite and should be. Waits for it.
  virtual double error(const ForwardArgs& args, std::uint64_t seed, Queue queue) = 0;
};

// What is asked of a backend that runs attention beside attention itself.
class Diagnostics {
 public:
  virtual ~Diagnostics() = default;

  // Runs the ceiling loops for about `seconds` in all. threads 0: all.
  virtual Ceilings measure_ceilings(int threads, double seconds) const = 0;

  // Something that checks so many rows of a forward while it runs, at little cost; null where the
  // memory is the host's, whose rows the reference recomputes. Throws Unsupported.
  virtual std::unique_ptr<RowsCheck> rows_check(const Problem&, int /*rows*/) const {
    return nullptr;
  }
};

}  // namespace dfa
