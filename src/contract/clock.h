#pragma once

namespace dfa {

// Time, injected so that tests can turn it by hand.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_s() const = 0;  // monotonic
  virtual void sleep_s(double seconds) = 0;
};

}  // namespace dfa
