#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "contract/actuator.h"
#include "contract/meter.h"
#include "contract/operating_point.h"
#include "dfa/error.h"
#include "power/policy.h"

// The controller: a pure function of values. No thread, no clock, no sensor.
//
// Board power is taken as idle + bias · dynamic · level: `dynamic` of an operating point from the
// profile, one learned `bias` a card, and `level` in (0, 1], the share of full work that SM budget
// and pacing leave. Level is fed forward from a target of power and trimmed by what is measured.
namespace dfa::power {

// What recomputed rows of a point's output showed: the largest difference from fp32.
struct SeenError {
  std::size_t point = 0;
  double value = 0;
};

struct Observation {
  double time_s = 0;
  std::optional<Reading> power{};  // W; with the time from which it is
  std::optional<double> mean_w{};  // of the last second
  std::optional<double> temp_c{};
  std::optional<double> call_s{};  // what a call of this point takes, gaps not counted
  std::optional<double> step_s{};  // the work between two gaps, of a loop that has them there alone
  int load = 0;                    // whose points are to be chosen from
  std::optional<SeenError> error{};
  bool capped = false;   // the firmware holds the clock down
  bool foreign = false;  // others run on the card
  bool busy = true;      // our kernels run
  std::string unread{};  // why there is no reading of power
};

struct ControllerSettings {
  double margin = 0.012;       // how far below a cap to aim, of the cap
  double limit_margin = 0.02;  // likewise, of the card's own limit
  double band = 0.002;         // of the level: smaller corrections wait
  double up_step = 0.05;       // of the level at most, a step
  double reading_s = 0.04;     // a reading looks back this far: older actions only
  bool instants = true;        // they teach; else the mean of a second alone, where there is one
  double bias_gain = 0.15;     // of a reading of an instant
  double mean_gain = 0.3;      // of the mean of a second, held against the levels of that second
  double swing_gain = 0.06;    // … of what a step more or less in that second would explain
  double mean_s = 1.15;        // a second, and how late its mean may be shown
  double surprise = 0.1;       // from the expected power: then the bias is learned at once
  double noises = 4;           // … and at least so many mean deviations of the readings
  double dwell_s = 0.5;        // between changes of a discrete lever
  double worth = 1.03;         // a switch of points must gain this factor
  double stale_s = 0.35;       // without a new reading: hold, then feed-forward alone
  double stale_share = 0.95;   // of the target, then
  double temp_margin_c = 1;    // the sensor shows whole degrees, cut off
  double temp_period_s = 1;
  double temp_gain_w_per_c = 16;
  double temp_reset_s = 8;
  double temp_stale_s = 5;  // without a temperature: told, and the budget stands
  double temp_time_s = 40;  // the slowest time of a card's heat, as the simulated card has it
  double temp_doubt = 1.5;  // … which may be so much longer on another
};

// What does not change while a load runs, but for levers of the card's owner, which may end.
struct Setup {
  std::vector<OperatingPoint> points;  // at least one
  Levers levers;
  double idle_w = 0;   // with a context, nothing running
  double limit_w = 0;  // the card's own
  double max_error = std::numeric_limits<double>::infinity();
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();  // of workspace
  ControllerSettings settings{};
};

// Can this policy be followed with these points? The reason where not.
Verdict check(const Setup& setup, const Policy& policy);
// Whether a policy that turns a lever of the card's owner finds it lent, and as far; a part of the
// check above.
Verdict check_levers(const Levers& levers, const Policy& policy);

enum class PolicyStatus : int {
  holding,     // follows the policy by what is measured
  stale,       // no new reading: by the profile alone
  foreign,     // others on the card: our own share is held, by the profile
  infeasible,  // the goal cannot be reached; as near as can be
};
const char* name_of(PolicyStatus status);

// Work that was let through until then: the integral of dynamic power times level.
struct Dose {
  double time_s = 0;
  double dynamic_j = 0;
};

struct State {
  bool started = false;
  Action action{};
  double level = 1;
  double target_w = 0;  // 0: none
  double bias = 1;
  double noise = 0.02;   // mean deviation of readings from the expected, relative
  int low_readings = 0;  // far below the expected, one after the other
  double time_bias = 1;  // measured time of a call, of the profile's; of one configuration
  int load = 0;
  double error_scale = 1;  // errors above the bound, of the profile's
  double started_s = 0;
  double steady_s = 0;  // since then one bias holds, and no jump: means of a second tell it
  std::array<Dose, 48> doses{};  // the latest first; more than a second's steps
  int dose_count = 0;
  double acted_s = 0;  // last change of anything that a reading would show
  double point_changed_s = -1e9;
  double sms_changed_s = -1e9;
  double limit_judged_s = -1e9;  // whether the card's own limit holds a cap
  double power_read_s = -1e9;    // time of the last new reading
  double temp_step_s = -1e9;
  double temp_read_s = -1e9;
  double temp_error_c = 0;
  double temp_budget_w = 0;
  std::array<Reading, 3> colder{};  // degrees reached since levers draw their least, latest first
  int colder_count = 0;
};

// One step, to be read afterwards.
struct Decision {
  double time_s = 0;
  PolicyStatus status = PolicyStatus::holding;
  Action action{};
  double level = 1;
  double bias = 1;
  std::optional<double> target_w{};
  std::optional<double> predicted_w{};
  std::optional<double> power_w{};  // the reading it is based on
  std::optional<double> mean_w{};   // of the last second
  std::optional<double> temp_c{};
  std::optional<double> error{};  // seen since the step before
  std::optional<double> foreign_w{};
  // Where infeasible: the nearest value of the goal that can be had. Degrees are what the card's
  // cooling tends to, as far as it shows yet.
  std::optional<double> reachable{};
  std::string why;
};

struct ControlStep {
  State state;
  Decision decision;
  const Action& action() const { return decision.action; }
};

// Requires check(). Deterministic; the same arguments give the same bits.
ControlStep step(const State& state, const Observation& seen, const Policy& policy,
                 const Setup& setup);

// What a point is called: its configuration and a clock that it is locked to, its own or another.
std::string text_of(const OperatingPoint& point, double clock_hz);
inline std::string text_of(const OperatingPoint& point) {
  return text_of(point, point.clock_hz.value_or(0));
}

// Board power that the profile and the learned bias expect.
double predicted_power(const Setup& setup, const State& state, std::size_t point, double level);

// Level that SM budget and pacing together reach at least.
double least_level(const Levers& levers);

}  // namespace dfa::power
