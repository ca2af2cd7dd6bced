#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "contract/clock.h"
#include "contract/meter.h"
#include "sensors/simulated/card.h"

namespace dfa::simulated {

// What runs on the card. Pacing is far faster than the step of the simulation: its mean counts.
struct Load {
  double dynamic_w = 0;   // on top of idle, on all SMs at the highest clock, without gaps
  double work_per_s = 0;  // likewise
  double sms = 132;
  double duty = 1;
  double foreign_w = 0;  // another program's, at the highest clock
};

// What can go wrong with the sensors.
struct Faults {
  bool outage = false;  // every reading fails
  bool stuck = false;   // values stay what they were
};

// A GPU on virtual time: power, clocks under the firmware's cap, temperature, and its sensors as
// they are (25 ms of every 100 ms, a mean over a second, a counter that ticks every 100 ms, whole
// degrees). The same seed and calls give the same values, to the bit.
class Gpu final : public Clock {
 public:
  Gpu(const CardParameters& card, std::uint64_t seed);

  void set_load(const Load& load) { load_ = load; }
  void set_limit(double watts) { card_.limit_w = watts; }
  void lock_clock(double hz);  // 0: as the firmware likes
  void set_inlet(double temp_c) { card_.inlet_c = temp_c; }
  void set_faults(const Faults& faults) { faults_ = faults; }
  void reset_counter() { counter_offset_j_ = energy_j_; }
  void advance(double seconds);

  // Temperatures and clocks as after hours of this load.
  void settle();

  const CardParameters& card() const { return card_; }
  const Load& load() const { return load_; }
  double now_s() const override { return static_cast<double>(step_) * kStep; }
  void sleep_s(double seconds) override { advance(seconds); }

  // The truth, which no sensor tells.
  double power_w() const { return power_w_; }
  double energy_j() const { return energy_j_; }
  double clock_hz() const { return clock_hz_; }
  double temp_c() const;
  double work() const { return work_; }
  double capped_s() const { return capped_s_; }

  // What the sensors tell. Empty during an outage.
  std::optional<Reading> instant_power() const { return shown(instant_); }
  std::optional<Reading> average_power() const { return shown(average_); }
  std::optional<Reading> energy_counter() const { return shown(counter_); }
  std::optional<Reading> temperature() const { return shown(temperature_); }
  std::optional<Reading> sm_clock() const { return shown(clock_); }
  std::optional<Reading> capped_time() const { return shown(capped_); }

  static constexpr double kStep = 1e-3;
  static constexpr double kSensorPeriod = 0.1;

 private:
  void step();
  void govern_clock();
  void show_sensors();
  double second_mean() const { return second_sum_ / static_cast<double>(second_.size()); }
  std::optional<Reading> shown(const Reading& reading) const {
    return faults_.outage ? std::nullopt : std::optional<Reading>(reading);
  }

  CardParameters card_;
  Random random_;
  Load load_;
  Faults faults_;
  std::int64_t step_ = 0;
  double power_w_ = 0;
  double energy_j_ = 0;
  double work_ = 0;
  double capped_s_ = 0;
  double clock_hz_ = 0;     // what the chip runs at, in whole steps of
  double governed_hz_ = 0;  // what the firmware wants
  double highest_hz_ = 0;   // what it may want, in whole steps of the clock
  double filtered_w_ = 0;
  double counter_offset_j_ = 0;
  std::array<double, 3> rise_c_ = {};  // of each pole above the one before
  std::array<double, 3> pole_step_ = {};
  std::array<double, 1000> second_ = {};  // power of each of the last milliseconds
  double second_sum_ = 0;
  Reading instant_, average_, counter_, temperature_, clock_, capped_;
};

}  // namespace dfa::simulated
