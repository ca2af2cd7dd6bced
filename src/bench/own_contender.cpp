#include "bench/own_contender.h"

namespace dfa::bench {

OwnContender::OwnContender(Workload& workload, const Prepared& plans, Launch launch, int calls)
    : workload_(workload), plans_(plans), calls_(calls) {
  if (launch == Launch::graph) recording_ = workload_.record(plans_, calls_);
}

void OwnContender::run(int times) {
  recording_ ? workload_.replay(*recording_, times) : workload_.run(plans_, times * calls_);
}

double OwnContender::time_s() {
  return recording_ ? workload_.time_s(*recording_) : workload_.time_s(plans_, calls_);
}

MemoryGrowth OwnContender::growth() { return workload_.growth(plans_); }

CheckReport OwnContender::check(const CheckOptions& options) {
  return workload_.check(plans_, options, [this] { run(1); });
}

}  // namespace dfa::bench
