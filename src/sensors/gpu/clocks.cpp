#include "sensors/gpu/clocks.h"

#include <fmt/format.h>

#include <algorithm>

namespace dfa::sensors {

Verdict has_clock(const std::string& what, const Range& hz, const Value<std::vector<double>>& has) {
  if (!has.value || has.value->empty()) {
    return Verdict::no(
        fmt::format("{}: the card does not tell which it has: {}", what, has.status.reason));
  }
  const auto apart = [&](double one) { return std::max({hz.least - one, one - hz.most, 0.0}); };
  const double nearest = *std::ranges::min_element(*has.value, {}, apart);
  if (apart(nearest) < 1) return Verdict::yes();  // Hz
  const std::string wanted = hz.least == hz.most ? fmt::format("{:g} MHz", 1e-6 * hz.least)
                                                 : fmt::format("clock from {:g} to {:g} MHz",
                                                               1e-6 * hz.least, 1e-6 * hz.most);
  return Verdict::no(
      fmt::format("{}: the card has no {}; of its {:g} to {:g} MHz {:g} is the nearest", what,
                  wanted, 1e-6 * has.value->front(), 1e-6 * has.value->back(), 1e-6 * nearest));
}

}  // namespace dfa::sensors
