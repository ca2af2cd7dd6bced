#include "run/held_levers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>

#include "base/quantity.h"
#include "power/controller.h"
#include "sensors/gpu/clocks.h"
#include "sensors/gpu/registry.h"

namespace dfa::run {

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

namespace {

sensors::Value<std::vector<double>> clocks_of_card(const std::string& card) {
  const auto found = sensors::find_card(card);
  return found.value ? (*found.value)->sm_clocks_hz()
                     : sensors::Value<std::vector<double>>{{}, found.status};
}

}  // namespace

void require_clocks(const std::string& what, const Range& hz, const std::string& card) {
  const Verdict has = sensors::has_clock(what, hz, clocks_of_card(card));
  if (!has) throw Unsupported(has.reason);
}

// What is not lent is not turned to.
static void require_lent_clock(const std::string& what, const std::optional<double>& hz,
                               const std::string& card, const power::Lent& lent) {
  if (!hz || !lent.clocks || !Range{lent.clocks->least_hz, lent.clocks->most_hz}.holds(*hz)) return;
  require_clocks(what, {*hz, *hz}, card);
}

void require_clock(const power::Policy& policy, const std::string& card, const power::Lent& lent) {
  require_lent_clock("policy " + power::to_text(policy), policy.clock_hz(), card, lent);
}

void require_clock(const OperatingPoint& point, const std::string& card, const power::Lent& lent) {
  require_lent_clock("row '" + power::text_of(point) + "'", point.clock_hz, card, lent);
}

std::vector<double> parse_clocks(const std::string& text) {
  const auto mhz = list_with(text, "MHz");
  if (mhz) return *mhz;
  throw InvalidArgument("clocks '" + text +
                        "'; accepted: 1980,1500,1200MHz, or a range with its step, "
                        "1200:1980:60MHz; 100 clocks at most");
}

std::vector<double> clocks_of(const std::string& text, const std::string& card,
                              const power::Lent& lent) {
  const std::vector<double> mhz = parse_clocks(text);
  if (!lent.clocks) throw Unsupported("clocks '" + text + "': those of the card are not lent");
  const std::string what = "clocks '" + text + "'";
  const auto has = clocks_of_card(card);
  std::vector<double> hz;
  for (const double one : mhz) {
    hz.push_back(1e6 * one);
    const Range range{lent.clocks->least_hz, lent.clocks->most_hz};
    if (!range.holds(hz.back())) {
      throw InvalidArgument(fmt::format("clocks '{}': {:g} MHz is not lent; accepted: {:g} to {:g}",
                                        text, one, 1e-6 * range.least, 1e-6 * range.most));
    }
    const Verdict there = sensors::has_clock(what, {hz.back(), hz.back()}, has);
    if (there) continue;
    if (!has.value || has.value->empty()) throw Unsupported(there.reason);
    throw InvalidArgument(there.reason);
  }
  return hz;
}

namespace {

constexpr double kLongestUnnoticed = 0.5;  // s

sensors::PowerLimits opened(sensors::CardControl& control, const std::string& card) {
  const auto limits = control.open(card);
  if (!limits.value) throw Unsupported(limits.status.reason);
  return *limits.value;
}

}  // namespace

HeldLevers::HeldLevers(std::unique_ptr<sensors::CardControl> control, const std::string& card,
                       double lease_s)
    : HeldLevers(std::move(control), opened(*control, card), lease_s) {}

HeldLevers::HeldLevers(std::unique_ptr<sensors::CardControl>&& control,
                       const sensors::PowerLimits& limits, double lease_s)
    : control_(std::move(control)), limits_(limits) {
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
  lent.gone = [this] { return lost().has_value(); };
  return lent;
}

void HeldLevers::lock_clock(double hz) {
  const std::lock_guard lock(mutex_);
  if (const auto why = lost()) throw Unsupported(*why);
  const Verdict turned = hz > 0 ? control_->lock_clocks(hz, hz) : control_->unlock_clocks();
  if (!turned) throw Unsupported(turned.reason);
}

std::optional<std::string> HeldLevers::lost() const {
  const std::lock_guard lock(lost_mutex_);
  return lost_;
}

void HeldLevers::renew(double lease_s) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> often(std::min(lease_s / 3, kLongestUnnoticed));
  while (!wake_.wait_for(lock, often, [this] { return stopping_; })) {
    if (const Verdict kept = control_->keep(lease_s); !kept) {
      const std::lock_guard mine(lost_mutex_);
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

}  // namespace dfa::run
