#include "sensors/energy_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace dfa::sensors {
namespace {

double longest_period(const std::vector<Meter*>& counters) {
  double period = 0;
  for (const Meter* meter : counters) period = std::max(period, meter->period_s());
  return period;
}

}  // namespace

// Reads counters before they lose what they counted, until it goes away. What it reads is dropped:
// the meters keep count.
class EnergyWindow::Keeper {
 public:
  explicit Keeper(const std::vector<Meter*>& counters) {
    for (Meter* meter : counters) {
      if (!std::isfinite(meter->longest_gap_s())) continue;
      counters_.push_back(meter);
      period_s_ = std::min(period_s_, meter->longest_gap_s());
    }
    if (!counters_.empty()) thread_ = std::jthread([this](std::stop_token stop) { loop(stop); });
  }

 private:
  void loop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> period(period_s_);
    while (!wake_.wait_for(lock, stop, period, [&] { return stop.stop_requested(); })) {
      for (Meter* meter : counters_) meter->read();
    }
  }

  std::vector<Meter*> counters_;
  double period_s_ = std::numeric_limits<double>::infinity();
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

EnergyWindow::~EnergyWindow() = default;
EnergyWindow::EnergyWindow(EnergyWindow&&) noexcept = default;
EnergyWindow& EnergyWindow::operator=(EnergyWindow&&) noexcept = default;

EnergyWindow::EnergyWindow(std::vector<Meter*> counters) : counters_(std::move(counters)) {
  for (const Meter* meter : counters_) {
    if (meter->quantity() != Quantity::energy_j) {
      throw InvalidArgument("energy window: " + meter->name() + " is not an energy counter");
    }
  }
}

EnergyWindow::EnergyWindow(std::vector<Meter*> counters, Clock& clock)
    : EnergyWindow(std::move(counters)) {
  clock_ = &clock;
}

void EnergyWindow::begin() {
  keeper_.reset();
  reads_ = 0;
  first_ = marks();
  keeper_ = std::make_unique<Keeper>(counters_);
}

std::vector<EnergyWindow::Mark> EnergyWindow::marks() {
  if (clock_ != nullptr) return marks_at_ticks();
  std::vector<Mark> marks;
  for (Meter* meter : counters_) marks.push_back(read(*meter));
  return marks;
}

// One value. Its time is the meter's own, or with a clock the interval in which it was answered. A
// read that fails is tried once more: a counter that broke off answers again, with another number
// of breaks, and what was before a window began is no matter of the window's.
EnergyWindow::Mark EnergyWindow::read(Meter& meter) {
  std::optional<Reading> reading;
  double before = 0;
  for (int attempt = 0; attempt < 2 && !reading; ++attempt) {
    ++reads_;
    before = clock_ != nullptr ? clock_->now_s() : 0;
    reading = meter.read();
  }
  if (!reading) return {.reason = "a reading failed: " + meter.status().reason};
  const double from_s = clock_ != nullptr ? before : reading->time_s;
  const double to_s = clock_ != nullptr ? clock_->now_s() : reading->time_s;
  return {reading->value, from_s, to_s, {}, reading->breaks};
}

std::vector<EnergyWindow::Mark> EnergyWindow::marks_at_ticks() {
  std::vector<Mark> marks;
  for (Meter* meter : counters_) marks.push_back(read(*meter));
  const double begin = clock_->now_s();
  std::vector<bool> done(counters_.size());
  while (std::find(done.begin(), done.end(), false) != done.end()) {
    clock_->sleep_s(longest_period(counters_) / 100);
    for (std::size_t i = 0; i < counters_.size(); ++i) {
      if (!done[i]) done[i] = !marks[i].value || caught_tick(*counters_[i], marks[i]);
    }
    if (clock_->now_s() - begin > 10 * longest_period(counters_) + 0.5) break;
  }
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    if (done[i]) continue;
    marks[i] = {.reason = fmt::format("the counter stands still at {:.3f} J since {:.1f} s",
                                      *marks[i].value, clock_->now_s() - begin)};
  }
  return marks;
}

// Reads once. When the counter has changed since `mark`, or broke off, the tick was between that
// read and this.
bool EnergyWindow::caught_tick(Meter& meter, Mark& mark) {
  const Mark now = read(meter);
  if (!now.value) {
    mark = now;
    return true;
  }
  if (*now.value == *mark.value && now.breaks == mark.breaks) {
    mark.from_s = now.from_s;
    mark.to_s = now.to_s;
    return false;
  }
  mark = {now.value, mark.from_s, now.to_s, {}, now.breaks};
  return true;
}

Energy EnergyWindow::end() {
  Energy energy;
  if (counters_.empty() || first_.size() != counters_.size()) {
    energy.reason = counters_.empty() ? "no energy counter" : "the window was not begun";
    return energy;
  }
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    if (first_[i].value) continue;
    energy.reason = counters_[i]->name() + ": " + first_[i].reason;
    return energy;
  }
  keeper_.reset();  // a read of its own would delay the mark
  const std::vector<Mark> last = marks();
  double joules = 0;
  for (std::size_t i = 0; i < counters_.size() && energy.reason.empty(); ++i) {
    energy.reason = add(*counters_[i], first_[i], last[i], energy, joules);
  }
  energy.reads = reads_;
  if (energy.reason.empty()) energy.energy_j = joules;
  return energy;
}

// Adds what one counter saw; a reason when that is no energy.
std::string EnergyWindow::add(const Meter& meter, const Mark& first, const Mark& last,
                              Energy& energy, double& joules) const {
  if (!last.value) return meter.name() + ": " + last.reason;
  if (first.breaks != last.breaks) return meter.name() + ": " + meter.break_reason();
  const double seconds = (last.from_s + last.to_s - first.from_s - first.to_s) / 2;
  const double delta = *last.value - *first.value;
  if (!(seconds > 0) || !(delta > 0)) {
    return meter.name() + ": the counter did not move in the window, or went back";
  }
  const double watts = delta / seconds;
  const double late = clock_ != nullptr ? (last.to_s - last.from_s + first.to_s - first.from_s) / 2
                                        : 2 * meter.period_s();
  joules += delta;
  energy.power_w += watts;
  energy.uncertainty_j += watts * late;
  energy.seconds = std::max(energy.seconds, seconds);
  return {};
}

}  // namespace dfa::sensors
