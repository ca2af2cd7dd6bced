#pragma once

#include <filesystem>

#include "bench/suite_run.h"

namespace dfa::bench {

// What a run has measured so far, beside its result to be: `out.partial.json` of `out.json`, a
// result file like any other. A process that is killed leaves it; an older result stays as it was
// until the run's own is written.
class PartialResult {
 public:
  explicit PartialResult(const std::filesystem::path& out);

  // At most every other second, so that short problems are not held up. Where it cannot be written
  // the run goes on: writing the result itself tells why.
  void keep(const SuiteRun& so_far);

  void remove();

 private:
  std::filesystem::path path_;
  double kept_s_;
};

}  // namespace dfa::bench
