#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "contract/clock.h"

namespace dfa::sensors {

// The machine's monotonic clock.
class SystemClock final : public Clock {
 public:
  double now_s() const override { return monotonic_s(); }
  void sleep_s(double seconds) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
};

}  // namespace dfa::sensors
