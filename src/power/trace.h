#pragma once

#include <optional>
#include <string>
#include <vector>

#include "power/controller.h"

// What a governed run was asked for and what it showed, on a card and on a simulated one alike.
namespace dfa::power {

// 100 ms. Of a simulated card the truth, whatever its sensors said; of a card what they said, NaN
// where there is no sensor.
struct TraceSample {
  double time_s = 0;    // its end
  double power_w = 0;   // mean; of a card that of an instant
  double second_w = 0;  // mean of the last second
  double temp_c = 0;
  double clock_hz = 0;
  double work_per_s = 0;
  double cap_w = 0;  // of the policy; 0: none
  double cap_c = 0;
};

// Something that happened in the run, after which caps have to be held anew.
struct TraceEvent {
  double at_s = 0;
  std::string note{};
  std::optional<Policy> policy{};  // that holds from then on, where it is another
};

struct TraceHead {
  std::string name{};
  std::string about{};
  std::string card{};
  Policy policy{};  // from the beginning
  double seconds = 0;
  std::vector<TraceEvent> events{};  // in order of time
};

struct Trace {
  Setup setup{};  // what the controller knew
  std::vector<TraceSample> samples{};
  std::vector<Decision> decisions{};  // every one
  double work = 0;
  double energy_j = 0;
  // The longest stretch of outputs beyond the bound, where one is declared; of a simulation alone.
  std::optional<double> inexact_s{};
  double host_s = 0;  // that a simulation took
};

// One line of JSON, keys with units; what is not known is null.
std::string to_json_line(const Decision& decision, const Setup& setup);

// As a Chrome trace (chrome://tracing, ui.perfetto.dev): counters of power, temperature, clock and
// level, and one slice for each stretch of equal point and status.
std::string to_chrome_trace(const Trace& trace);

}  // namespace dfa::power
