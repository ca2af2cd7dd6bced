#include "govern/shipped.h"

#include <algorithm>

#include "attention/registry.h"
#include "govern/shipped_text.h"
#include "govern/tune.h"
#include "profile/json.h"

namespace dfa::govern {

const std::vector<profile::Row>& shipped_rows() {
  static const std::vector<profile::Row> rows = [] {
    std::vector<profile::Row> all;
    for (const char* text : shipped_texts()) {
      for (profile::Row& row : profile::from_json(text)) all.push_back(std::move(row));
    }
    return all;
  }();
  return rows;
}

std::vector<Candidate> shipped_points(const Problem& problem, const std::string& backend,
                                      bool less_exact, std::string& told) {
  const std::string card = find_backend(backend).gpu_identity().name;
  const std::string kernels = find_backend(backend).kernels();
  const std::string line = to_line(problem);
  std::vector<profile::Row> rows;
  for (const profile::Row& row : shipped_rows()) {
    if (row.machine.card == card && row.machine.kernels == kernels && row.problem == line &&
        row.backend == backend) {
      rows.push_back(row);
    }
  }
  if (rows.empty()) {
    told = "no shipped row of '" + line + "' on '" + card + "' by kernels " + kernels;
    return {};
  }
  const profile::Row& first = rows.front();
  told =
      "measured on " + first.machine.card + ", driver " + first.machine.driver + ", " + first.date;
  return candidates_of(problem, backend, rows, less_exact);
}

}  // namespace dfa::govern
