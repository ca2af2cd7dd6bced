#pragma once

#include "bench/implementation.h"
#include "bench/suites.h"
#include "measure/problem_buffers.h"

namespace dfa::bench {

// Plans of ours on buffers, which must outlive it.
class OwnImplementation final : public Implementation {
 public:
  // Records the graph where one is asked for; throws Unsupported where there are none.
  OwnImplementation(measure::ProblemBuffers& buffers, const measure::PassPlans& plans,
                    Launch launch, int calls);

  void run(int times) override;
  double time_s() override;
  measure::MemoryGrowth growth() override;
  CheckReport check(const CheckOptions& options) override;

 private:
  measure::ProblemBuffers& buffers_;
  measure::PassPlans plans_;
  int calls_;
  std::unique_ptr<const Recording> recording_;  // null: eager
};

}  // namespace dfa::bench
