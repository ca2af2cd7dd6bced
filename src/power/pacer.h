#pragma once

#include <atomic>
#include <cstddef>

#include "contract/actuator.h"
#include "contract/clock.h"

namespace dfa::power {

// What the governor's thread sets and launching threads read. An action takes effect at the next
// launch.
class Pacer final : public Actuator {
 public:
  // sms: the multiprocessor levers of the kernels that run; none by default.
  explicit Pacer(const Levers& levers = {}) : levers_(levers) {}

  Levers levers() const override { return levers_; }
  void apply(const Action& action) override;

  std::size_t point() const { return point_.load(std::memory_order_relaxed); }
  int sms() const { return sms_.load(std::memory_order_relaxed); }
  double duty() const { return duty_.load(std::memory_order_relaxed); }

 private:
  const Levers levers_;
  std::atomic<std::size_t> point_{0};
  std::atomic<int> sms_{0};
  std::atomic<double> duty_{1};
};

// The gaps between launches of one thread. Threads that launch on streams of their own share a
// pacer, each with its own gaps: the duty is that of every stream.
class Gaps {
 public:
  explicit Gaps(const Pacer& pacer) : pacer_(pacer) {}

  // After `run_s` of work: waits until duty holds on average. Waits that would be shorter than a
  // clock can keep are owed, and a wait that took longer is taken off the next.
  void pause(double run_s, Clock& clock);

 private:
  const Pacer& pacer_;
  double owed_s_ = 0;
};

}  // namespace dfa::power
