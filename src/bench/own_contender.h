#pragma once

#include "bench/contender.h"
#include "bench/suites.h"
#include "bench/workload.h"

namespace dfa::bench {

// Plans of ours on a workload, which must outlive it.
class OwnContender final : public Contender {
 public:
  // Records the graph where one is asked for; throws Unsupported where there are none.
  OwnContender(Workload& workload, const Prepared& plans, Launch launch, int calls);

  void run(int times) override;
  double time_s() override;
  MemoryGrowth growth() override;
  CheckReport check(const CheckOptions& options) override;

 private:
  Workload& workload_;
  Prepared plans_;
  int calls_;
  std::unique_ptr<const Recording> recording_;  // null: eager
};

}  // namespace dfa::bench
