#include "profile/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dfa/problem.h"
#include "spec/config_text.h"

namespace dfa::profile {
namespace {

// Of multiprocessors: MHz or kHz in the place of Hz are below.
constexpr double kLeastClockHz = 1e7, kMostClockHz = 1e11;

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

}  // namespace

Verdict check(const Row& row) {
  const OperatingPoint& p = row.point;
  if (std::ranges::find(kDTypes, p.dtype) == std::end(kDTypes)) return Verdict::no("dtype is none");
  if (!is_positive(p.time_s)) return Verdict::no("time_s must be above 0");
  for (const auto& [name, value] :
       {std::pair{"power_w", p.power_w}, {"energy_j", p.energy_j}, {"dynamic_w", p.dynamic_w}}) {
    if (value && !is_positive(*value)) {
      return Verdict::no(std::string(name) + " must be above 0 or null");
    }
  }
  if (p.clock_hz && !(*p.clock_hz >= kLeastClockHz && *p.clock_hz <= kMostClockHz)) {
    return Verdict::no(fmt::format("clock_hz {:g} must be from {:g} to {:g} Hz, or null",
                                   *p.clock_hz, kLeastClockHz, kMostClockHz));
  }
  if (!(p.clock_share > 0 && p.clock_share <= 1)) {
    return Verdict::no("clock_share must be above 0 and at most 1");
  }
  if (!(p.error >= 0)) return Verdict::no("error must be 0 or more");
  if (p.memory_bytes < 0) return Verdict::no("memory_bytes must be 0 or more");
  try {
    const Problem problem = parse_problem(row.problem);
    require_known_type(p.label);
    if (names_other_pass(p.label, problem.pass)) {
      return Verdict::no("config '" + p.label + "' is of the other pass than '" + row.problem +
                         "'");
    }
  } catch (const InvalidArgument& error) {
    return Verdict::no(error.what());
  }
  return Verdict::yes();
}

}  // namespace dfa::profile
