#include "govern/held_levers.h"

#include <chrono>
#include <functional>
#include <utility>

namespace dfa::govern {

power::Lent lent_by(sensors::CardControl& control, const sensors::PowerLimits& limits) {
  power::Lent lent;
  if (limits.most_w > 0) {
    const double found_w = limits.found_w;
    lent.limit = power::Limit{.usual_w = found_w,
                              .least_w = limits.least_w,
                              .most_w = limits.most_w,
                              .set = [&control, found_w](double watts) {
                                control.request_power_limit(watts == found_w ? 0 : watts);
                              }};
  }
  if (const auto clocks = control.clocks_hz()) {
    lent.clocks = power::Clocks{.least_hz = clocks->least,
                                .most_hz = clocks->most,
                                .lock = [&control](double hz) { control.request_clocks(hz); }};
  }
  return lent;
}

HeldLevers::HeldLevers(std::unique_ptr<sensors::CardControl> control, const std::string& card,
                       double lease_s)
    : control_(std::move(control)) {
  const auto limits = control_->open(card);
  if (!limits.value) throw Unsupported(limits.status.reason);
  limits_ = *limits.value;
  if (const Verdict kept = control_->keep(lease_s); !kept) throw Unsupported(kept.reason);
  thread_ = std::thread([this, lease_s] { renew(lease_s); });
}

HeldLevers::~HeldLevers() { stop(); }

power::Lent HeldLevers::lent() {
  const std::lock_guard lock(mutex_);
  power::Lent lent = lent_by(*control_, limits_);
  const auto alone = [this](std::function<void(double)> turn) {
    return [this, turn = std::move(turn)](double value) {
      const std::lock_guard mine(mutex_);
      turn(value);
    };
  };
  if (lent.limit) lent.limit->set = alone(lent.limit->set);
  if (lent.clocks) lent.clocks->lock = alone(lent.clocks->lock);
  return lent;
}

std::optional<std::string> HeldLevers::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void HeldLevers::renew(double lease_s) {
  std::unique_lock lock(mutex_);
  const auto third = std::chrono::duration<double>(lease_s / 3);
  while (!wake_.wait_for(lock, third, [this] { return stopping_; })) {
    if (const Verdict kept = control_->keep(lease_s); !kept) {
      lost_ = kept.reason;
      return;
    }
  }
}

void HeldLevers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Verdict HeldLevers::end() {
  stop();
  return control_->end();
}

}  // namespace dfa::govern
