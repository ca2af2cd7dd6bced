#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <string>
#include <utility>

#include "contract/clock.h"
#include "contract/meter.h"

namespace dfa::testing {

// Time turned by hand; a sampler's thread may be reading it.
class FakeClock final : public Clock {
 public:
  double now_s() const override { return now; }
  void sleep_s(double seconds) override { now += seconds; }
  std::atomic<double> now = 0;
};

// Says what it was told to say.
class FakeMeter final : public Meter {
 public:
  explicit FakeMeter(Quantity quantity, double period_s = 0.1)
      : quantity_(quantity), period_s_(period_s) {}

  std::string name() const override { return "fake"; }
  Quantity quantity() const override { return quantity_; }
  double period_s() const override { return period_s_; }
  Verdict status() const override { return status_; }
  std::optional<Reading> read() override {
    ++reads;
    if (script.empty()) {
      status_ = Verdict::no("the script is over");
      return std::nullopt;
    }
    const Reading reading = script.front();
    script.pop_front();
    return reading;
  }

  std::deque<Reading> script;
  int reads = 0;

 private:
  Quantity quantity_;
  double period_s_;
  Verdict status_;
};

}  // namespace dfa::testing
