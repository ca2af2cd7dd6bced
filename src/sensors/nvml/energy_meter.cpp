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

constexpr double kLongestGap = 1;       // s: a read takes 2 ms; what goes unseen grows with it
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
    const std::optional<Shown> now = counter();
    failed_ = failed_ || !now;
    if (!now) return std::nullopt;
    take(*now);
    if (!status_) return std::nullopt;
    return Reading{(now->from_s + now->to_s) / 2, joules_, breaks_};
  }

 private:
  // What the driver's counter showed at some time of a call, in which the thread may have been put
  // aside.
  struct Shown {
    double joules, from_s, to_s;
  };
  std::optional<Shown> counter() {
    unsigned long long millijoules = 0;
    const double before = clock_.now_s();
    status_ = device_.api().total_energy(device_.handle(), &millijoules);
    const double after = clock_.now_s();
    if (!status_) return std::nullopt;
    return Shown{static_cast<double>(millijoules) * 1e-3, before, after};
  }

  // Counts what was used since the last reading, or says why that is not known.
  void take(const Shown& now) {
    const double limit_w = device_.power_limit_w().value_or(limit_w_.value_or(kLargestLimit));
    // It may have been another one until a moment ago.
    const double largest_w = 2 * std::max(limit_w, limit_w_.value_or(0));
    limit_w_ = limit_w;
    if (last_) {
      status_ = judge(*last_, now, largest_w);
      if (status_ && !stands_) joules_ += now.joules - last_->joules;
      if (stands_ && now.joules == last_->joules) {
        status_ = Verdict::no(break_reason_);  // the same break, however often it is seen
      } else if (!status_) {
        ++breaks_;
        break_reason_ = status_.reason;
      }
    }
    if (!last_ || now.joules != last_->joules) changed_s_ = now.to_s;
    stands_ = last_ && now.from_s - changed_s_ >= kStandstill;
    last_ = now;
    failed_ = false;
  }

  Verdict judge(const Shown& before, const Shown& now, double largest_w) const {
    const double seconds = now.to_s - before.from_s;  // at most
    const double most = largest_w * (seconds + 2 * period_s());
    if (now.joules < before.joules) {
      return Verdict::no(fmt::format(
          "the energy counter went back from {:.3f} to {:.3f} J: the driver was loaded anew",
          before.joules, now.joules));
    }
    if (now.joules - before.joules > most) {
      return Verdict::no(
          fmt::format("the energy counter rose by {:.0f} J in {:.2f} s, more than "
                      "twice what the limit of {:.0f} W allows",
                      now.joules - before.joules, seconds, largest_w / 2));
    }
    if (failed_ && now.joules <= most) {
      return Verdict::no(
          fmt::format("the energy counter did not answer for {:.2f} s, in which it "
                      "may have started anew and reached its {:.3f} J",
                      seconds, now.joules));
    }
    if (now.joules == before.joules && now.from_s - changed_s_ >= kStandstill) {
      return Verdict::no(fmt::format("the energy counter stands still at {:.3f} J since {:.1f} s",
                                     now.joules, now.from_s - changed_s_));
    }
    return Verdict::yes();
  }

  const GaugeInfo& info_ = info_of(Gauge::energy);
  Device device_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // an energy window reads between its marks, on another thread
  Verdict status_;
  std::optional<double> limit_w_;
  std::optional<Shown> last_;
  double joules_ = 0;
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
