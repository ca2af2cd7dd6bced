#include "sensors/sampler.h"

#include <chrono>
#include <string>
#include <utility>

namespace dfa::sensors {

Sampler::Sampler(std::vector<Meter*> meters, double period_s, std::size_t capacity)
    : meters_(std::move(meters)), period_s_(period_s), capacity_(capacity) {
  if (!(period_s > 0)) {
    throw InvalidArgument("sampler: period " + std::to_string(period_s) + " s is not above zero");
  }
  if (capacity == 0) throw InvalidArgument("sampler: capacity 0; at least one sample must fit");
}

Sampler::~Sampler() { stop(); }

void Sampler::start() {
  if (thread_.joinable()) return;
  stopping_ = false;
  thread_ = std::thread([this] { loop(); });
}

void Sampler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Sampler::sample_once() {
  for (std::size_t i = 0; i < meters_.size(); ++i) {
    const std::optional<Reading> reading = meters_[i]->read();
    if (!reading) continue;
    const std::lock_guard lock(mutex_);
    if (ring_.size() == capacity_) {
      ring_.pop_front();
      ++dropped_;
    }
    ring_.push_back({i, *reading});
  }
}

std::vector<Sampler::Sample> Sampler::drain() {
  const std::lock_guard lock(mutex_);
  std::vector<Sample> samples(ring_.begin(), ring_.end());
  ring_.clear();
  return samples;
}

std::uint64_t Sampler::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Sampler::loop() {
  using Seconds = std::chrono::duration<double>;
  const auto period =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(period_s_));
  auto next = std::chrono::steady_clock::now();
  while (true) {
    sample_once();
    next += period;
    std::unique_lock lock(mutex_);
    if (wake_.wait_until(lock, next, [this] { return stopping_; })) return;
  }
}

}  // namespace dfa::sensors
