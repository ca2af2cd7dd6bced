#include "bench/partial_result.h"

#include "base/clock.h"
#include "bench/machine.h"
#include "bench/result_writer.h"
#include "dfa/error.h"

namespace dfa::bench {
namespace {

constexpr double kEvery_s = 2;

std::filesystem::path beside(const std::filesystem::path& out) {
  return out.parent_path() / (out.stem().string() + ".partial.json");
}

}  // namespace

PartialResult::PartialResult(const std::filesystem::path& out)
    : path_(is_stream(out) ? "" : beside(output_target(out))), kept_s_(monotonic_s() - kEvery_s) {}

void PartialResult::keep(const SuiteRun& so_far) {
  if (path_.empty() || monotonic_s() - kept_s_ < kEvery_s) return;
  Result result = so_far.result;
  result.created = utc_now();
  result.argv = process_arguments();
  try {
    write_result(path_, result, so_far.samples);
  } catch (const IoError&) {
  }
  kept_s_ = monotonic_s();
}

void PartialResult::remove() {
  if (!path_.empty()) remove_result(path_);
}

}  // namespace dfa::bench
