#pragma once

#include <limits>
#include <optional>
#include <string>

#include "dfa/error.h"

namespace dfa {

// What a meter measures; the unit is fixed by the quantity and stands in its name.
enum class Quantity : int {
  energy_j,  // counter: only differences mean anything
  power_w,
  temp_c,
  clock_hz,
  utilization_pct,
  memory_bytes,
  duration_s,      // counter: time spent in a state
  event_bits,      // a set of flags as a whole number
  transfer_bytes,  // counter: sent or received
};

// One reading. time_s is the time of the value on the meter's clock, not of the call.
struct Reading {
  double time_s = 0;
  double value = 0;
  // Of a counter: how often it was found to have started anew, stood still or turned over unseen.
  // Readings with different numbers must not be subtracted; Meter::break_reason() tells why.
  int breaks = 0;
};

// One sensor. Trouble is data: a failed read is an empty optional and status() tells why.
class Meter {
 public:
  virtual ~Meter() = default;
  virtual std::string name() const = 0;  // e.g. "rapl:package-0"
  virtual Quantity quantity() const = 0;
  virtual double period_s() const = 0;  // how often the value changes
  virtual std::optional<Reading> read() = 0;
  virtual Verdict status() const = 0;  // why the last read failed

  // Of a counter: read less often than this, it may lose what it counted, or break off unseen. What
  // must be read in time may be read from several threads at once.
  virtual double longest_gap_s() const { return std::numeric_limits<double>::infinity(); }
  virtual std::string break_reason() const { return {}; }  // of the last of Reading::breaks
};

}  // namespace dfa
