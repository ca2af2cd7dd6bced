#include "bench/own_implementation.h"

namespace dfa::bench {

OwnImplementation::OwnImplementation(measure::ProblemBuffers& buffers,
                                     const measure::PassPlans& plans, Launch launch, int calls)
    : buffers_(buffers), plans_(plans), calls_(calls) {
  if (launch == Launch::graph) recording_ = buffers_.record(plans_, calls_);
}

void OwnImplementation::run(int times) {
  recording_ ? buffers_.replay(*recording_, times) : buffers_.run(plans_, times * calls_);
}

double OwnImplementation::time_s() {
  return recording_ ? buffers_.time_s(*recording_) : buffers_.time_s(plans_, calls_);
}

measure::MemoryGrowth OwnImplementation::growth() { return buffers_.growth(plans_); }

CheckReport OwnImplementation::check(const CheckOptions& options) {
  return buffers_.check(plans_, options, [this] { run(1); });
}

}  // namespace dfa::bench
