#include "profile/frontier.h"

#include <algorithm>

namespace dfa::profile {
namespace {

bool beats(const OperatingPoint& a, const OperatingPoint& b) {
  if (a.clock_hz && a.clock_hz != b.clock_hz) return false;
  const bool energy_known = a.energy_j && b.energy_j;
  if (!b.energy_j && a.energy_j && a.time_s < b.time_s && a.error <= b.error) return true;
  if (a.energy_j.has_value() != b.energy_j.has_value()) return false;
  if (a.time_s > b.time_s || a.error > b.error) return false;
  if (energy_known && *a.energy_j > *b.energy_j) return false;
  return a.time_s < b.time_s || a.error < b.error || (energy_known && *a.energy_j < *b.energy_j);
}

}  // namespace

std::vector<Row> frontier(const std::vector<Row>& rows) {
  std::vector<Row> best;
  for (const Row& row : rows) {
    const auto beats_row = [&](const Row& other) { return beats(other.point, row.point); };
    if (std::none_of(rows.begin(), rows.end(), beats_row)) best.push_back(row);
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const Row& a, const Row& b) { return a.point.time_s < b.point.time_s; });
  return best;
}

std::string stale_reason(const Row& row, const Machine& machine) {
  if (row.machine.card != machine.card) return "measured on " + row.machine.card;
  if (row.machine.driver != machine.driver) return "measured with driver " + row.machine.driver;
  if (row.machine.kernels != machine.kernels) return "measured with kernels " + row.machine.kernels;
  return "";
}

}  // namespace dfa::profile
