#pragma once

#include <optional>
#include <string>

#include "profile/row.h"
#include "run/tune.h"

namespace dfa::run {

// A row of this processor with made-up time and joules.
inline profile::Row made_up_row(const Problem& problem, const std::string& label, double time_s,
                                std::optional<double> energy_j) {
  profile::Row row;
  row.machine = machine_of("cpu", problem.pass);
  row.problem = to_line(problem);
  row.backend = "cpu";
  row.point.label = label;
  row.point.dtype = problem.dtype;
  row.point.time_s = time_s;
  row.point.energy_j = energy_j;
  row.date = "2026-01-31T12:00:00Z";
  return row;
}

}  // namespace dfa::run
