#pragma once

#include <string>

#include "dfa/error.h"

namespace dfa::sensors {

// The joules behind a counter of microjoules that turns over. A pure function of what was read and
// when: RaplMeter reads, this judges.
class TurningCounter {
 public:
  // range_uj: where the counter turns over, as the kernel tells it; 0 where it does not.
  explicit TurningCounter(double range_uj);

  // How often the counter must be read, in seconds.
  double longest_gap_s() const;

  // Takes in what the counter showed at a time. No, with the reason, where it cannot be said what
  // was used since the last one; the counting then begins anew from here, and breaks() has risen.
  Verdict add(double now_uj, double time_s);

  double joules() const { return used_uj_ * 1e-6; }
  int breaks() const { return breaks_; }
  const std::string& break_reason() const { return break_reason_; }

 private:
  double turn_s() const;
  Verdict judge(double now_uj, double time_s, double& used_uj);

  double range_uj_;
  double largest_w_;
  double used_uj_ = 0;
  double last_uj_ = 0;
  double last_s_ = 0;
  double changed_s_ = 0;
  bool begun_ = false;
  int breaks_ = 0;
  std::string break_reason_;
};

}  // namespace dfa::sensors
