#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/result.h"
#include "bench/runner.h"
#include "bench/suites.h"

namespace dfa::bench {

struct SuiteOptions {
  std::string backend = "auto";
  int threads = 0;     // 0: all this process may use
  double seconds = 0;  // timed samples of the whole run, 0: chosen by scale
  bool interleave = true;
  std::uint64_t seed = 1;
  Scale scale = Scale::cpu;
  int sm_budget = 0;                    // of our own, 0: all multiprocessors
  bool energy = true;                   // sustained runs, seconds a case
  double energy_seconds = 0;            // how long each is; 0: as long as the counter wants
  std::string config{};                 // of flash, as text; empty: as planned
  std::vector<std::string> peers{};     // of TorchPeer::algorithms(), beside ours
  std::function<bool()> interrupted{};  // asked before each problem; true ends the run early
};

struct SuiteRun {
  Result result;                             // created, argv left to the caller
  std::vector<std::vector<Sample>> samples;  // of each case
};

struct Progress {
  double fraction = 0;  // of the run, in [0, 1]
  int problem = 0;      // from 1
  int problems = 0;
  std::string what;  // the problem and what is being done with it
};

// Measures every problem with every algorithm of its group: plan, tune where asked for, time
// interleaved, check on the inputs that were timed, measure memory and energy. Trouble with one
// case is its status; the run goes on. Throws InvalidArgument for an unknown algorithm or
// backend, Unsupported when the machine has no backend. After each problem but the last
// `on_problem` sees what there is.
SuiteRun run_suite(const std::vector<ProblemGroup>& groups, const SuiteOptions& options,
                   const std::function<void(const Progress&)>& on_progress = {},
                   const std::function<void(const SuiteRun&)>& on_problem = {});

}  // namespace dfa::bench
