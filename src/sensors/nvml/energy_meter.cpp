#include "sensors/nvml/energy_meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sensors/nvml/meters.h"

namespace dfa::nvml {
namespace {

constexpr double kLongestGap =
    1;  // s: a read takes 2 ms of a thread; what goes unseen grows with it
constexpr double kStandstill = 1.5;     // s, 15 ticks: a card at rest draws watts too
constexpr double kLargestLimit = 3000;  // W: where no limit is told; no card's is as high

class EnergyMeter final : public Meter {
 public:
  EnergyMeter(const Device& device, const Clock& clock) : device_(device), clock_(clock) {}

  std::string name() const override { return info_.name; }
  Quantity quantity() const override { return info_.quantity; }
  double period_s() const override { return info_.period_s; }
  double longest_gap_s() const override { return kLongestGap; }
  Verdict status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  std::string break_reason() const override {
    const std::lock_guard lock(mutex_);
    return break_reason_;
  }

  std::optional<Reading> read() override {
    const std::lock_guard lock(mutex_);
    const std::optional<Reading> now = counter();
    failed_ = failed_ || !now;
    if (!now) return std::nullopt;
    take(*now);
    if (!status_) return std::nullopt;
    return Reading{now->time_s, joules_, breaks_};
  }

 private:
  // What the driver's counter shows, at the middle of the call.
  std::optional<Reading> counter() {
    unsigned long long millijoules = 0;
    const double before = clock_.now_s();
    status_ = device_.api().total_energy(device_.handle(), &millijoules);
    const double after = clock_.now_s();
    if (!status_) return std::nullopt;
    slack_s_ = (after - before) / 2;
    return Reading{(before + after) / 2, static_cast<double>(millijoules) * 1e-3};
  }

  // Counts what was used since the last reading, or says why that is not known.
  void take(const Reading& now) {
    const double limit_w = device_.power_limit_w().value_or(limit_w_.value_or(kLargestLimit));
    // It may have been another one until a moment ago.
    const double largest_w = 2 * std::max(limit_w, limit_w_.value_or(0));
    limit_w_ = limit_w;
    if (last_) {
      status_ = judge(*last_, now, largest_w);
      if (status_ && !stands_) joules_ += now.value - last_->value;
      if (stands_ && now.value == last_->value) {
        status_ = Verdict::no(break_reason_);  // the same break, however often it is seen
      } else if (!status_) {
        ++breaks_;
        break_reason_ = status_.reason;
      }
    }
    if (!last_ || now.value != last_->value) changed_s_ = now.time_s + slack_s_;
    stands_ = last_ && unchanged_s(now) >= kStandstill;
    last_ = now;
    last_slack_s_ = slack_s_;
    failed_ = false;
  }

  // At least: a thread may have been put aside in the middle of a call.
  double unchanged_s(const Reading& now) const { return now.time_s - slack_s_ - changed_s_; }

  Verdict judge(const Reading& before, const Reading& now, double largest_w) const {
    const double seconds = now.time_s - before.time_s;
    const double most = largest_w * (seconds + slack_s_ + last_slack_s_ + 2 * period_s());
    if (now.value < before.value) {
      return Verdict::no(fmt::format(
          "the energy counter went back from {:.3f} to {:.3f} J: the driver was loaded anew",
          before.value, now.value));
    }
    if (now.value - before.value > most) {
      return Verdict::no(
          fmt::format("the energy counter rose by {:.0f} J in {:.2f} s, more than "
                      "twice what the limit of {:.0f} W allows",
                      now.value - before.value, seconds, largest_w / 2));
    }
    if (failed_ && now.value <= most) {
      return Verdict::no(
          fmt::format("the energy counter did not answer for {:.2f} s, in which it "
                      "may have started anew and reached its {:.3f} J",
                      seconds, now.value));
    }
    if (now.value == before.value && unchanged_s(now) >= kStandstill) {
      return Verdict::no(fmt::format("the energy counter stands still at {:.3f} J since {:.1f} s",
                                     now.value, now.time_s - changed_s_));
    }
    return Verdict::yes();
  }

  const GaugeInfo& info_ = info_of(Gauge::energy);
  Device device_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // an energy window reads between its marks, on another thread
  Verdict status_;
  std::optional<double> limit_w_;
  std::optional<Reading> last_;  // as the driver's counter shows it
  double joules_ = 0;
  double slack_s_ = 0, last_slack_s_ = 0;  // how far its time may be off
  double changed_s_ = 0;
  bool stands_ = false;  // since the last break
  bool failed_ = false;  // the reads since the last reading
  int breaks_ = 0;
  std::string break_reason_;
};

}  // namespace

std::unique_ptr<Meter> make_energy_meter(const Device& device, const Clock& clock) {
  return std::make_unique<EnergyMeter>(device, clock);
}

}  // namespace dfa::nvml
