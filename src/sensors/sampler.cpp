#include "sensors/sampler.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/clock.h"

namespace dfa::sensors {

Sampler::Sampler(std::vector<Meter*> meters, double period_s, std::size_t capacity,
                 double max_share)
    : meters_(std::move(meters)), period_s_(period_s), capacity_(capacity), max_share_(max_share) {
  if (!(period_s > 0)) {
    throw InvalidArgument("sampler: period " + std::to_string(period_s) + " s is not above zero");
  }
  if (capacity == 0) throw InvalidArgument("sampler: capacity 0; at least one sample must fit");
  if (!(max_share > 0)) {
    throw InvalidArgument("sampler: share " + std::to_string(max_share) + " is not above zero");
  }
}

Sampler::~Sampler() { stop(); }

void Sampler::start() {
  if (thread_.joinable()) return;
  stopping_ = false;
  cost_ = {};
  begin_s_ = monotonic_s();
  running_ = true;
  thread_ = std::thread([this] { loop(); });
}

void Sampler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  if (std::exchange(running_, false)) cost_.wall_s = monotonic_s() - begin_s_;
}

void Sampler::sample_once() {
  const double begin = monotonic_s();
  for (std::size_t i = 0; i < meters_.size(); ++i) {
    const std::optional<Reading> reading = meters_[i]->read();
    if (!reading) continue;
    const std::lock_guard lock(mutex_);
    if (ring_.size() == capacity_) {
      ring_.pop_front();
      ++dropped_;
    }
    ring_.push_back({i, *reading, round_});
  }
  const std::lock_guard lock(mutex_);
  ++round_;
  ++cost_.rounds;
  cost_.read_s += monotonic_s() - begin;
}

std::vector<Sampler::Entry> Sampler::drain() {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> samples(ring_.begin(), ring_.end());
  ring_.clear();
  return samples;
}

std::uint64_t Sampler::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

ReadingCost Sampler::cost() const {
  const std::lock_guard lock(mutex_);
  ReadingCost cost = cost_;
  if (running_) cost.wall_s = monotonic_s() - begin_s_;
  return cost;
}

void Sampler::loop() {
  using Clock = std::chrono::steady_clock;
  const auto after = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const Clock::time_point begin = Clock::now();
  Clock::time_point next = begin;
  while (true) {
    sample_once();
    std::unique_lock lock(mutex_);
    next = std::max(next + after(period_s_), begin + after(cost_.read_s / max_share_));
    if (wake_.wait_until(lock, next, [this] { return stopping_; })) return;
  }
}

}  // namespace dfa::sensors
