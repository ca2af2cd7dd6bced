#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "contract/clock.h"
#include "contract/meter.h"

// A clock and a card for tests of loops that are paced.
namespace dfa::run {

// Time that the loop's own sleeps turn and nothing else, so that a busy machine changes no number.
// Each 20 ms of it the thread of the loop's driver has looked once at least, while there is one.
class TurnedClock final : public Clock {
 public:
  double now_s() const override {
    if (std::this_thread::get_id() == owner_) return now_;
    const std::lock_guard lock(mutex_);
    ++looks_;
    looked_.notify_all();
    return now_;
  }
  double shown_s() const { return now_; }  // to whom is no driver

  void sleep_s(double seconds) override {
    const double end = now_ + seconds;
    while (now_ < end) {
      now_ = std::min(end, next_s_);
      if (now_ < next_s_) continue;
      next_s_ += kLook;
      if (driven && driven()) await_look();
    }
  }

  std::function<bool()> driven{};

 private:
  static constexpr double kLook = 0.02;

  // A driver asks for the time when it begins to look and when it has: after three times, whichever
  // comes first, it has begun and ended once.
  void await_look() {
    std::unique_lock lock(mutex_);
    const long from = looks_;
    const bool looked = looked_.wait_for(lock, std::chrono::seconds(60),
                                         [this, from] { return looks_ >= from + 3; });
    if (!looked) throw std::runtime_error("no driver looks");
  }

  const std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<double> now_{0};
  double next_s_ = kLook;
  mutable std::mutex mutex_;
  mutable std::condition_variable looked_;
  mutable long looks_ = 0;
};

// What meters of watts have in common here.
class FastPowerMeter : public Meter {
 public:
  std::string name() const override { return "card"; }
  Quantity quantity() const override { return Quantity::power_w; }
  double period_s() const override { return 0.02; }
  Verdict status() const override { return Verdict::yes(); }
};

// Draws 600 W while the loop works and 100 W in its gaps; shows the mean of the last 0.1 s, as
// boards do, ten times faster than they.
class LoopMeter final : public FastPowerMeter {
 public:
  explicit LoopMeter(const TurnedClock& clock) : clock_(clock) {}
  std::optional<Reading> read() override {
    const double now = clock_.shown_s();
    return Reading{now, 100 + 500 * (duty ? duty() : share.load()) + 0.1 * std::sin(1e3 * now)};
  }
  std::atomic<double> share{1};    // of the time that steps take
  std::function<double()> duty{};  // where it is what the loop is set to

 private:
  const TurnedClock& clock_;
};

inline constexpr double kWork = 0.004;  // seconds of a step
// Seconds from look to look of the governor's thread, by the machine's clock: time stands still
// until it has looked, so that it sees what it would see every 10 ms, sooner.
inline constexpr double kNoWait = 1e-5;

}  // namespace dfa::run
