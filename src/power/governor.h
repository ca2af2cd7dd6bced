#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "contract/actuator.h"
#include "contract/clock.h"
#include "contract/meter.h"
#include "power/controller.h"

namespace dfa::power {

// Sensors of one card; null where there is none. They must outlive who holds them.
struct Telemetry {
  Meter* power = nullptr;  // instantaneous
  Meter* mean = nullptr;   // of the last second
  std::vector<Meter*>
      energy{};  // counters, read where there is no power; it is that of all of them
  Meter* temperature = nullptr;
  Meter* capped = nullptr;  // time below the wanted clock
};

// What only the one who runs the kernels knows.
struct Activity {
  bool busy = true;
  bool foreign = false;
  std::optional<double> call_s{};
  std::optional<double> step_s{};  // the work between two gaps, of a loop that has them there alone
  int load = 0;                    // whose points are to be chosen from
  std::optional<SeenError> error{};  // the latest; told again and again does no harm
};

// Turns readings into observations. Sensors date a value by the call, not by the measurement: a
// value is new when it differs, or after two periods; one that stays the same to the last bit for
// ten periods is a sensor that stands still, and no reading. Power comes from the counters where
// nothing else tells it: from all of them, and not across a break of one, a standstill, or a step
// back.
class Observer {
 public:
  explicit Observer(const Telemetry& telemetry) : telemetry_(telemetry) {}
  Observation observe(double time_s, const Activity& activity);

 private:
  std::optional<Reading> power();
  std::optional<Reading> from_counters();
  std::optional<Reading> counted();
  std::optional<Reading> dated(const Reading& reading);
  bool capped();

  Telemetry telemetry_;
  Reading last_{-1e9, 0};    // the last power believed
  double changed_s_ = -1e9;  // when its value changed
  std::string unread_;       // why power() gave nothing
  std::optional<Reading> last_energy_;
  std::optional<Reading> derived_;
  std::optional<Reading> last_capped_;
  bool was_capped_ = false;
};

// One controller on one card: looks, steps where there is something new or a period has gone,
// applies. Has no thread of its own; whoever holds it calls tick() often (every 10 ms).
class Governor {
 public:
  static constexpr double kPeriod = 0.1;

  // Throws Unsupported with the reason where check() says no.
  Governor(Setup setup, const Policy& policy, const Telemetry& telemetry, Actuator& actuator);

  // The decision, where one was made.
  std::optional<Decision> tick(double time_s, const Activity& activity);

  // Throws Unsupported where the new policy cannot be followed; the old one then stays.
  void set_policy(const Policy& policy);
  const Policy& policy() const { return policy_; }
  const Setup& setup() const { return setup_; }  // levers: those of the last tick
  const State& state() const { return state_; }

 private:
  Setup setup_;
  Policy policy_;
  Observer observer_;
  Actuator& actuator_;
  State state_;
  double stepped_s_ = 0;
  bool policy_changed_ = true;
};

}  // namespace dfa::power
