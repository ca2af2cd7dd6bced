#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "contract/clock.h"
#include "measure/telemetry.h"
#include "power/policy.h"
#include "power/trace.h"
#include "sensors/meter_set.h"

namespace dfa::run {

// The sensor's own mean of the last second; empty, with the reason, where there is none.
sensors::MeterSet open_second_mean(const GpuIdentity& gpu, const Clock& clock);

// What sensors say ten times a second, and once a second who else is on the card. Has a thread of
// its own: reading takes milliseconds, and launches do not wait for it.
class Sampling {
 public:
  using OnSample = std::function<void(const power::TraceSample&)>;

  static constexpr double kPeriod = 0.1;

  // on_sample is called from the thread.
  Sampling(const GpuIdentity& gpu, const Clock& clock, OnSample on_sample);
  ~Sampling() { stop(); }
  Sampling(const Sampling&) = delete;
  Sampling& operator=(const Sampling&) = delete;

  void start(double begin_s, const power::Policy& policy);  // begin_s: time 0 of the samples
  std::vector<power::TraceSample> stop();

  // From the launching thread.
  void add_work(double flops) { work_.store(work_ + flops, std::memory_order_relaxed); }
  double work() const { return work_.load(std::memory_order_relaxed); }
  void set_policy(const power::Policy& policy);
  bool foreign() const { return foreign_.load(std::memory_order_relaxed); }

 private:
  void loop();
  power::TraceSample take();

  GpuIdentity gpu_;
  const Clock& clock_;
  OnSample on_sample_;
  measure::Telemetry sensors_;
  sensors::MeterSet second_;
  std::atomic<double> work_{0};
  std::atomic<bool> foreign_{false};
  std::mutex mutex_;  // of policy_ and stopping_
  std::condition_variable wake_;
  power::Policy policy_;
  bool stopping_ = false;
  double begin_s_ = 0;
  double taken_s_ = 0, taken_work_ = 0;
  std::vector<double> recent_;
  std::vector<power::TraceSample> samples_;
  std::thread thread_;
};

}  // namespace dfa::run
