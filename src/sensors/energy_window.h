#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contract/meter.h"

namespace dfa::sensors {

// Energy between two marks. Empty with a reason where nothing measured it.
struct Energy {
  std::optional<double> energy_j;
  double uncertainty_j = 0;
  double seconds = 0;
  std::string reason;
};

// Differences of energy counters between two marks, summed over the meters. A counter is up to one
// period old at each mark, so each end is uncertain by one period's worth of average power.
class EnergyWindow {
 public:
  // Counters only; other quantities throw InvalidArgument. The meters must outlive the window.
  explicit EnergyWindow(std::vector<Meter*> counters);

  void begin();
  Energy end();

 private:
  std::vector<Meter*> counters_;
  std::vector<std::optional<Reading>> first_;
};

}  // namespace dfa::sensors
