#pragma once

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
  duration_s,  // counter: time spent in a state
  event_bits,  // a set of flags as a whole number
};

// One reading. time_s is the time of the value on the meter's clock, not of the call.
struct Reading {
  double time_s = 0;
  double value = 0;
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
};

}  // namespace dfa
