#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/clock.h"
#include "contract/meter.h"

namespace dfa::sensors {

// Energy between two marks. Empty with a reason where nothing measured it: a reading failed, a
// counter stood still, went back, or broke off in between (Reading::breaks).
struct Energy {
  std::optional<double> energy_j;
  double uncertainty_j = 0;  // a bound, not a deviation
  double power_w = 0;        // mean, summed over the counters
  double seconds = 0;        // between the marks; of the counter with the longest window
  int reads = 0;             // of counters, at both marks together
  std::string reason;
};

// Differences of energy counters between two marks, summed over the meters. The meters must outlive
// the window; other quantities than energy_j throw InvalidArgument. From begin() to end() a thread
// of the window reads the counters that must be read in time (Meter::longest_gap_s).
class EnergyWindow {
 public:
  // Marks are where they are called. A counter is up to one period old at each mark, so each end is
  // uncertain by one period's worth of average power.
  explicit EnergyWindow(std::vector<Meter*> counters);
  ~EnergyWindow();
  EnergyWindow(EnergyWindow&&) noexcept;
  EnergyWindow& operator=(EnergyWindow&&) noexcept;

  // Marks are ticks: begin() and end() read on until every counter has changed, for a period or
  // two, and each end is uncertain by no more than the time between the two reads that saw the
  // change. What is measured must be running before begin() and beyond end(). A counter that does
  // not change for ten periods and half a second stands still.
  EnergyWindow(std::vector<Meter*> counters, Clock& clock);

  void begin();
  Energy end();

 private:
  // A counter's value, and when it was that: some time from `from_s` to `to_s`.
  struct Mark {
    std::optional<double> value{};
    double from_s = 0;
    double to_s = 0;
    std::string reason{};
    int breaks = 0;
  };
  class Keeper;

  std::vector<Mark> marks();
  std::vector<Mark> marks_at_ticks();
  Mark read(Meter& meter);
  bool caught_tick(Meter& meter, Mark& mark);
  std::string add(const Meter& meter, const Mark& first, const Mark& last, Energy& energy,
                  double& joules) const;

  std::vector<Meter*> counters_;
  Clock* clock_ = nullptr;
  std::vector<Mark> first_;
  int reads_ = 0;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace dfa::sensors
