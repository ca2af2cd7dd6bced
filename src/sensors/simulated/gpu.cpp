#include "sensors/simulated/gpu.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dfa::simulated {
namespace {

constexpr int kGovernSteps = 10;
constexpr int kSensorSteps = 100;
constexpr int kInstantSteps = 25;

}  // namespace

double work_share(const CardParameters& card, double sms) {
  const double share = std::clamp(sms / card.sm_count, 0.0, 1.0);
  return share * (1 + card.contention * (1 - share));
}

double clock_power_factor(const CardParameters& card, double clock_hz) {
  const double clock = clock_hz / card.clock_max_hz;
  const double voltage = std::max(card.voltage_floor, 1 - card.voltage_slope * (1 - clock));
  return clock * voltage * voltage;
}

double board_power(const CardParameters& card, double dynamic_w, double clock_hz, double temp_c) {
  return card.idle_w + card.leakage_w_per_c * (temp_c - card.idle_temp_c) +
         dynamic_w * clock_power_factor(card, clock_hz);
}

Gpu::Gpu(const CardParameters& card, std::uint64_t seed)
    : card_(card),
      random_(seed),
      clock_hz_(card.clock_max_hz),
      governed_hz_(card.clock_max_hz),
      highest_hz_(card.clock_max_hz) {
  for (std::size_t i = 0; i < rise_c_.size(); ++i) {
    pole_step_[i] = 1 - std::exp(-kStep / card.poles[i].time_s);
  }
  settle();
}

double Gpu::temp_c() const {
  return card_.inlet_c + std::accumulate(rise_c_.begin(), rise_c_.end(), 0.0);
}

void Gpu::settle() {
  const double dynamic = load_.dynamic_w * work_share(card_, load_.sms) * load_.duty;
  power_w_ = card_.idle_w;
  for (int round = 0; round < 50; ++round) {  // leakage and temperature raise each other a little
    for (std::size_t i = 0; i < rise_c_.size(); ++i) rise_c_[i] = card_.poles[i].c_per_w * power_w_;
    const double wanted = board_power(card_, dynamic + load_.foreign_w, highest_hz_, temp_c());
    power_w_ = std::min(wanted, card_.limit_w);
  }
  filtered_w_ = power_w_;
  second_.fill(power_w_);
  second_sum_ = power_w_ * static_cast<double>(second_.size());
  show_sensors();
}

void Gpu::lock_clock(double hz) {
  const double steps = card_.clock_step_hz * std::round(hz / card_.clock_step_hz);
  highest_hz_ =
      hz > 0 ? std::clamp(steps, card_.clock_min_hz, card_.clock_max_hz) : card_.clock_max_hz;
}

void Gpu::advance(double seconds) {
  const auto end = step_ + std::llround(seconds / kStep);
  while (step_ < end) step();
}

void Gpu::step() {
  const double share = work_share(card_, load_.sms) * load_.duty;
  const double dynamic = load_.dynamic_w * share + load_.foreign_w;
  power_w_ = board_power(card_, dynamic, clock_hz_, temp_c());
  energy_j_ += power_w_ * kStep;
  work_ += load_.work_per_s * share * clock_hz_ / card_.clock_max_hz * kStep;
  if (clock_hz_ < highest_hz_) capped_s_ += kStep;
  for (std::size_t i = 0; i < rise_c_.size(); ++i) {
    rise_c_[i] += (card_.poles[i].c_per_w * power_w_ - rise_c_[i]) * pole_step_[i];
  }
  double& oldest = second_[static_cast<std::size_t>(step_) % second_.size()];
  second_sum_ += power_w_ - oldest;
  oldest = power_w_;
  filtered_w_ += (power_w_ - filtered_w_) * std::min(1.0, kStep / card_.cap_filter_s);
  ++step_;
  if (step_ % kGovernSteps == 0) govern_clock();
  if (step_ % kSensorSteps == 0 && !faults_.stuck) show_sensors();
}

void Gpu::govern_clock() {
  const double excess = std::max(0.0, second_mean() - card_.second_reference * card_.limit_w);
  const double target = card_.burst * card_.limit_w - card_.second_gain * excess;
  double change = (target - filtered_w_) * card_.cap_gain_hz_per_w;
  if (temp_c() > card_.slowdown_temp_c) change = -card_.clock_step_hz;
  governed_hz_ += std::clamp(change, -card_.cap_down_hz, card_.cap_up_hz);
  governed_hz_ = std::clamp(governed_hz_, card_.clock_min_hz, highest_hz_);
  clock_hz_ = card_.clock_step_hz * std::round(governed_hz_ / card_.clock_step_hz);
}

void Gpu::show_sensors() {
  const double now = now_s();
  double sum = 0;
  for (int i = 1; i <= kInstantSteps; ++i) {
    const auto size = static_cast<std::int64_t>(second_.size());
    sum += second_[static_cast<std::size_t>((step_ + size - i) % size)];
  }
  const double noise = 1 + card_.instant_noise * random_.normal(static_cast<std::uint64_t>(step_));
  instant_ = {now, sum / kInstantSteps * noise};
  average_ = {now, second_mean()};
  counter_ = {now, energy_j_ - counter_offset_j_};
  temperature_ = {now, std::floor(temp_c())};
  clock_ = {now, clock_hz_};
  capped_ = {now, capped_s_};
}

}  // namespace dfa::simulated
