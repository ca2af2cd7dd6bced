#include "run/shipped.h"

#include <algorithm>

#include "attention/registry.h"
#include "profile/json.h"
#include "run/shipped_text.h"

namespace dfa::run {

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

KnownPoints shipped_points(const Problem& problem, const PointOptions& options) {
  const std::string& backend = options.backend;
  const std::string card = find_backend(backend).device().identity().name;
  const std::string kernels = find_backend(backend).kernels(problem.pass);
  std::vector<profile::Row> rows = shipped_rows();
  std::erase_if(rows, [&](const profile::Row& row) {
    return row.machine.card != card || row.machine.kernels != kernels || row.backend != backend;
  });
  KnownPoints known = known_points(problem, rows, options);
  if (known.candidates.empty()) {
    known.told = "no shipped row of '" + to_line(problem) + "', nor of one of its kind within a " +
                 "factor of four, on '" + card + "' by kernels " + kernels;
  }
  return known;
}

KnownPoints points_from(const std::string& profile, const Problem& problem,
                        const PointOptions& options) {
  if (profile == "shipped") return shipped_points(problem, options);
  return stored_points(problem, profile::Store(profile, profile::Access::existing), options);
}

}  // namespace dfa::run
