#pragma once

#include <optional>
#include <string>
#include <vector>

#include "simulate/run.h"
#include "simulate/scenario.h"

namespace dfa::simulate {

// 100 ms of all cards.
struct RackSample {
  double time_s = 0;
  double budget_w = 0;
  double power_w = 0;   // true, of all cards
  double second_w = 0;  // mean of the last second
  double leases_w = 0;  // what cards live by
  double slowest = 0;   // work per second of the slowest card: what work in step goes by
  double fastest = 0;
};

struct RackRun {
  std::vector<RackSample> samples;
  double host_s = 0;
};

struct RackMetrics {
  double violation_pct = 0;  // of the time, 1-s mean above the budget, once settled
  double leases_over_w = 0;  // above the budget at most, a lease's life after a smaller budget
  double imbalance_pct = 0;  // of the fastest card above the slowest, in the last seconds
  std::optional<double> work_vs_equal{};  // work in step, of that with equal shares
};

// Cards that differ by scenario.rack->spread, each with the real controller under a cap that is its
// lease, and one coordinator whose messages may be lost. An interrupt ends it early, and leaves out
// the comparison with equal shares.
RackRun run_rack(const Scenario& scenario, const Interrupted& interrupted = {});
RackMetrics measure_rack(const Scenario& scenario, const RackRun& run,
                         const Interrupted& interrupted = {});

// Each metric that is out of its bound, in words.
std::vector<std::string> missed(const Scenario& scenario, const RackMetrics& metrics);

}  // namespace dfa::simulate
