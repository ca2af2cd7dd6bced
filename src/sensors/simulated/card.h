#pragma once

#include <array>
#include <string>

namespace dfa::simulated {

// One RC stage between die and inlet.
struct ThermalPole {
  double c_per_w = 0;
  double time_s = 1;
};

// What a simulated card is. Board power = idle + leakage + what the load draws, the last falling
// with clock times voltage squared. The defaults are an H200: fitted to tests/data/h200 by
// tests/sensors/fit_simulated.cpp, see docs/design/0016-simulated-gpu.md.
struct CardParameters {
  std::string name = "H200 (simulated)";
  int sm_count = 132;
  double clock_max_hz = 1980e6;
  double clock_min_hz = 345e6;
  double clock_step_hz = 15e6;

  double idle_w = 125.3;  // with a context, at idle_temp_c
  double idle_temp_c = 40;
  double leakage_w_per_c = 0.141;
  double voltage_floor = 0.87;  // of the voltage at the highest clock
  double voltage_slope = 1.56;  // relative voltage lost per relative clock lost, down to the floor
  double contention = 0.0835;   // how much faster one SM works alone than among all

  // The firmware holds a target that is above the limit while the mean of the last second is below
  // it, and falls where that mean is above.
  double limit_w = 700;
  double burst = 1.026;             // target at most, of the limit
  double second_reference = 1.002;  // of the limit: where the target starts to fall
  double second_gain = 10;          // W of target per W of the second's mean above the reference
  double cap_filter_s = 0.0192;     // of the power that is held against the target
  double cap_gain_hz_per_w = 3.16e+05;  // per 10 ms
  double cap_down_hz = 6.21e+07;        // at most, per 10 ms
  double cap_up_hz = 3.49e+07;

  // The slowest time is not in the record, which is six seconds long: an assumption.
  std::array<ThermalPole, 3> poles = {{{0.0223, 0.068}, {0.01, 0.406}, {0.0335, 40}}};
  double inlet_c = 32.3;
  double slowdown_temp_c = 87;  // the firmware lowers clocks above it

  double instant_noise = 0.003;  // relative, of the power sensor
};

// Share of all SMs' work that `sms` of them do at the same clock.
double work_share(const CardParameters& card, double sms);

// Power of a load at `clock_hz`, of its power at the highest clock.
double clock_power_factor(const CardParameters& card, double clock_hz);

// Board power of a load that would draw `dynamic_w` at the highest clock.
double board_power(const CardParameters& card, double dynamic_w, double clock_hz, double temp_c);

}  // namespace dfa::simulated
