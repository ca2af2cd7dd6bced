#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "contract/actuator.h"
#include "dfa/dtype.h"
#include "power/policy.h"
#include "sensors/simulated/card.h"

// A scenario: a card, what runs on it, what is asked for and what happens, as a JSON file. The
// grammar is in docs/guide/simulate.md.
namespace dfa::simulate {

// A way to run the load: what it truly draws and does at the highest clock.
struct TruePoint {
  std::string label;
  DType dtype = DType::bf16;
  double dynamic_w = 0;
  double work_per_s = 0;
  double error = 0;  // largest, on the inputs that the profile was measured on
};

// Something that happens. Only what is set changes.
struct Event {
  double at_s = 0;
  std::string note;
  std::optional<power::Policy> policy{};
  std::optional<double> load_factor{};   // of every point's dynamic power: operand values
  std::optional<double> error_factor{};  // of every point's error: harder inputs
  std::optional<bool> busy{};
  std::optional<double> foreign_w{};
  std::optional<bool> foreign_seen{};  // whether the driver lists the other program
  std::optional<double> inlet_c{};
  std::optional<bool> outage{};
  std::optional<bool> stuck{};
  bool counter_reset = false;
  std::optional<bool> lent{};         // whether the card's own levers are, as far as they were
  std::optional<double> budget_w{};   // of a rack
  std::optional<bool> coordinator{};  // of a rack: whether it is alive
};

// Bounds of the run's metrics, where set.
struct MetricBounds {
  std::optional<double> violation_pct{};   // of the time, 1-s mean above the cap, once settled
  std::optional<double> overshoot_pct{};   // 1-s mean above the cap at most, once settled
  std::optional<double> settling_s{};      // until 100-ms power stays within 2 % above the cap
  std::optional<double> work_vs_pacing{};  // work done, of that with gaps as the only lever, least
  std::optional<double> temp_over_c{};     // above the temperature cap at most, once settled
  std::optional<double> switches_per_minute{};  // of points, at most
  std::optional<double> power_deviation_w{};    // of 100-ms power between events, at most
  std::string status{};                         // must have been reached, e.g. "infeasible"
  std::optional<double> imbalance_pct{};        // of a rack: fastest above slowest card, at the end
  std::optional<double> work_vs_equal{};   // of a rack: work in step, of that with equal shares
  std::optional<double> infeasible_pct{};  // of decisions at most
  std::optional<double> inexact_s{};       // of outputs beyond max_error in one stretch, at most
};

// Several cards under one budget.
struct RackParameters {
  int cards = 8;
  double budget_w = 0;
  double spread = 0.08;  // of the power that cards draw for the same work, to either side
  double loss = 0;       // of messages
};

struct Scenario {
  std::string name;
  std::string about;
  double seconds = 20;
  std::uint64_t seed = 1;
  power::Policy policy;
  simulated::CardParameters card;
  Levers levers;
  std::vector<TruePoint> points;
  std::vector<double> clocks_hz;  // that the profile was measured at, beside the card's own
  double profile_error = 0;       // the profile says that much more power than is true, relative
  std::optional<double> max_error{};  // declared by the caller: then outputs are watched
  bool power_sensor = true;           // else only the counter
  std::optional<RackParameters> rack{};
  std::vector<Event> events;  // in order of time
  MetricBounds bounds;
};

// Throw InvalidArgument that names the key and what is accepted; IoError.
Scenario parse_scenario(const std::string& json);
Scenario read_scenario(const std::filesystem::path& path);

}  // namespace dfa::simulate
