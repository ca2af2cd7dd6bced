#include "profile/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "dfa/problem.h"
#include "spec/config_text.h"

namespace dfa::profile {
namespace {

// Of multiprocessors: MHz or kHz in the place of Hz are below.
constexpr double kLeastClockHz = 1e7, kMostClockHz = 1e11;

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

// A day and time of the calendar in UTC, as utc_now() writes it.
bool is_date(std::string_view text) {
  constexpr std::string_view kLike = "0000-00-00T00:00:00Z";
  if (text.size() != kLike.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kLike[i] == '0' ? !digit : text[i] != kLike[i]) return false;
  }
  const auto number = [&](std::size_t at, std::size_t digits) {
    return std::stoi(std::string(text.substr(at, digits)));
  };
  const std::chrono::year_month_day day{std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  return day.ok() && number(11, 2) < 24 && number(14, 2) < 60 && number(17, 2) <= 60;
}

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
  if (!(row.spread >= 0 && std::isfinite(row.spread))) {
    return Verdict::no("spread must be 0 or more");
  }
  if (row.machine.card.empty()) return Verdict::no("card must be named");
  if (row.backend.empty()) return Verdict::no("backend must be named");
  if (!is_date(row.date)) {
    return Verdict::no("date '" + row.date + "' must be of UTC, as 2026-01-31T12:00:00Z");
  }
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
