#include "run/sampling.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "sensors/gpu/registry.h"

namespace dfa::run {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();  // null in files
constexpr double kForeignPeriod = 1;

}  // namespace

sensors::MeterSet open_second_mean(const GpuIdentity& gpu, const Clock& clock) {
  if (gpu.pci_id.empty()) return {{}, Verdict::no("no GPU")};
  return sensors::open_meter(sensors::find_card(gpu.pci_id), sensors::Gauge::power_average, clock);
}

Sampling::Sampling(const GpuIdentity& gpu, const Clock& clock, OnSample on_sample)
    : gpu_(gpu),
      clock_(clock),
      on_sample_(std::move(on_sample)),
      sensors_(measure::open_telemetry(gpu, clock)),
      second_(open_second_mean(gpu, clock)) {}

void Sampling::start(double begin_s, const power::Policy& policy) {
  begin_s_ = begin_s;
  policy_ = policy;
  thread_ = std::thread([this] { loop(); });
}

std::vector<power::TraceSample> Sampling::stop() {
  if (!thread_.joinable()) return {};
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  return std::move(samples_);
}

void Sampling::set_policy(const power::Policy& policy) {
  const std::lock_guard lock(mutex_);
  policy_ = policy;
}

power::TraceSample Sampling::take() {
  power::TraceSample sample;
  sample.power_w = measure::value_of(sensors_.power).value_or(kNotMeasured);
  recent_.push_back(sample.power_w);
  if (recent_.size() > 10) recent_.erase(recent_.begin());
  const double sum = std::accumulate(recent_.begin(), recent_.end(), 0.0);
  sample.second_w = measure::value_of(second_).value_or(sum / static_cast<double>(recent_.size()));
  sample.temp_c = measure::value_of(sensors_.temperature).value_or(kNotMeasured);
  sample.clock_hz = measure::value_of(sensors_.clock).value_or(kNotMeasured);
  const double work = this->work();
  sample.time_s = clock_.now_s() - begin_s_;
  sample.work_per_s = (work - taken_work_) / std::max(1e-9, sample.time_s - taken_s_);
  taken_work_ = work;
  taken_s_ = sample.time_s;
  return sample;
}

void Sampling::loop() {
  double listed_s = -kForeignPeriod;
  std::unique_lock lock(mutex_);
  while (
      !wake_.wait_for(lock, std::chrono::duration<double>(kPeriod), [this] { return stopping_; })) {
    const power::Policy policy = policy_;
    lock.unlock();
    power::TraceSample sample = take();
    sample.cap_w = policy.power_cap_w().value_or(0);
    sample.cap_c = policy.temp_cap_c().value_or(0);
    samples_.push_back(sample);
    if (on_sample_) on_sample_(sample);
    if (sample.time_s - listed_s >= kForeignPeriod) {
      foreign_ = measure::foreign_processes(gpu_).value_or(0) > 0;
      listed_s = sample.time_s;
    }
    lock.lock();
  }
}

}  // namespace dfa::run
