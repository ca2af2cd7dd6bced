#pragma once

#include <string>
#include <vector>

#include "base/quantity.h"
#include "dfa/error.h"
#include "sensors/gpu/card.h"

namespace dfa::sensors {

// Whether a card can be locked to a range of clocks, of which one clock is one: the reason where it
// has none there, which names the nearest, or does not tell which it has. Libraries take any, and
// run another in silence. `what` asks.
Verdict has_clock(const std::string& what, const Range& hz, const Value<std::vector<double>>& has);

}  // namespace dfa::sensors
