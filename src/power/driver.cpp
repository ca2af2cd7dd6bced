#include "power/driver.h"

#include <chrono>
#include <utility>

namespace dfa::power {

Driver::Driver(Governor& governor, const Clock& clock, OnDecision on_decision, double tick_s)
    : governor_(governor), clock_(clock), on_decision_(std::move(on_decision)), tick_s_(tick_s) {}

Driver::~Driver() { stop(); }

void Driver::start() {
  const std::lock_guard lock(mutex_);
  if (running_) return;
  running_ = true;
  stopping_ = false;
  begin_s_ = clock_.now_s();
  stepping_s_ = 0;
  thread_ = std::thread([this] { loop(); });
}

void Driver::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!running_) return;
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  const std::lock_guard lock(mutex_);
  running_ = false;
}

void Driver::set_activity(const Activity& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity;
}

void Driver::set_policy(const Policy& policy) {
  const std::lock_guard lock(mutex_);
  governor_.set_policy(policy);
}

double Driver::busy_share() const {
  const std::lock_guard lock(mutex_);
  const double wall = clock_.now_s() - begin_s_;
  return wall > 0 ? stepping_s_ / wall : 0;
}

void Driver::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const double begin = clock_.now_s();
    const auto decision = governor_.tick(begin, activity_);
    stepping_s_ += clock_.now_s() - begin;
    if (decision && on_decision_) on_decision_(*decision);
    wake_.wait_for(lock, std::chrono::duration<double>(tick_s_), [this] { return stopping_; });
  }
}

}  // namespace dfa::power
