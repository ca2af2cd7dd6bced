#include "profile/check.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dfa/problem.h"

namespace dfa::profile {
namespace {

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

}  // namespace

Verdict check(const Row& row) {
  const OperatingPoint& p = row.point;
  if (std::ranges::find(kDTypes, p.dtype) == std::end(kDTypes)) return Verdict::no("dtype is none");
  if (!is_positive(p.time_s)) return Verdict::no("time_s must be above 0");
  for (const auto& [name, value] : {std::pair{"power_w", p.power_w},
                                    {"energy_j", p.energy_j},
                                    {"dynamic_w", p.dynamic_w},
                                    {"clock_hz", p.clock_hz}}) {
    if (value && !is_positive(*value)) {
      return Verdict::no(std::string(name) + " must be above 0 or null");
    }
  }
  if (!is_positive(p.clock_share)) return Verdict::no("clock_share must be above 0");
  if (!(p.error >= 0)) return Verdict::no("error must be 0 or more");
  if (p.memory_bytes < 0) return Verdict::no("memory_bytes must be 0 or more");
  try {
    parse_problem(row.problem);
  } catch (const InvalidArgument& error) {
    return Verdict::no(error.what());
  }
  return Verdict::yes();
}

}  // namespace dfa::profile
