#include "sensors/energy_window.h"

#include <algorithm>
#include <utility>

namespace dfa::sensors {

EnergyWindow::EnergyWindow(std::vector<Meter*> counters) : counters_(std::move(counters)) {
  for (const Meter* meter : counters_) {
    if (meter->quantity() != Quantity::energy_j) {
      throw InvalidArgument("energy window: " + meter->name() + " is not an energy counter");
    }
  }
}

void EnergyWindow::begin() {
  first_.clear();
  for (Meter* meter : counters_) first_.push_back(meter->read());
}

Energy EnergyWindow::end() {
  Energy energy;
  if (counters_.empty() || first_.size() != counters_.size()) {
    energy.reason = counters_.empty() ? "no energy counter" : "the window was not begun";
    return energy;
  }
  double joules = 0;
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    const std::optional<Reading> last = counters_[i]->read();
    if (!first_[i] || !last || !(last->time_s > first_[i]->time_s)) {
      energy.reason = counters_[i]->name() + ": " +
                      (!first_[i] || !last ? "a reading failed: " + counters_[i]->status().reason
                                           : "the counter did not move in the window");
      return energy;
    }
    const double seconds = last->time_s - first_[i]->time_s;
    const double delta = last->value - first_[i]->value;
    joules += delta;
    energy.uncertainty_j += 2 * counters_[i]->period_s() * delta / seconds;
    energy.seconds = std::max(energy.seconds, seconds);
  }
  energy.energy_j = joules;
  return energy;
}

}  // namespace dfa::sensors
