#include "power/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "power/choose.h"

namespace dfa::power {
namespace {

constexpr double kBiasLeast = 0.3, kBiasMost = 3;
constexpr double kLearnableShare = 0.15;  // of a point's dynamic power: less says nothing of it
constexpr double kTargetChange = 0.005;   // smaller ones are left to the trim

// One step in the making.
class Stepper {
 public:
  Stepper(const State& state, const Observation& seen, const Policy& policy, const Setup& setup)
      : state_(state), seen_(seen), policy_(policy), setup_(setup), tuning_(setup.tuning) {
    decision_.time_s = seen.time_s;
    decision_.temp_c = seen.temp_c;
  }

  Step run() {
    if (!state_.started) begin();
    read_power();
    learn();
    const double target = target_w();
    if (target > 0) {
      decision_.target_w = target;
      follow(target);
    } else {
      choose_freely();
    }
    state_.target_w = target;
    state_.started = true;
    set_action();
    decision_.action = state_.action;
    decision_.level = state_.level;
    decision_.bias = state_.bias;
    decision_.predicted_w = predicted();
    return {state_, decision_};
  }

 private:
  void begin() {
    state_.started_s = seen_.time_s;
    state_.acted_s = seen_.time_s;
    state_.power_read_s = seen_.time_s;
    state_.temp_budget_w = setup_.limit_w;
  }

  void say(const std::string& why) { decision_.why += (decision_.why.empty() ? "" : "; ") + why; }

  double dynamic() const { return dynamic_power(setup_, setup_.points[state_.action.point]); }

  std::optional<double> predicted() const {
    if (!setup_.points[state_.action.point].power_w) return std::nullopt;
    return predicted_power(setup_, state_, state_.action.point, state_.level);
  }

  // A reading counts once, and only where its time lies after the last action.
  void read_power() {
    const auto& power = seen_.power;
    if (!power || !std::isfinite(power->value) || !(power->value > 0)) return;
    if (!(power->time_s > state_.power_read_s)) return;
    state_.power_read_s = power->time_s;
    decision_.power_w = power->value;
    fresh_ = power->time_s - tuning_.reading_s >= state_.acted_s - 1e-9;
  }

  bool stale() const { return seen_.time_s - state_.power_read_s > tuning_.stale_s; }

  void learn() {
    if (!state_.started || !seen_.busy) return;
    if (seen_.call_s && *seen_.call_s > 0 && state_.action.sms == 0) {
      const double ratio = *seen_.call_s / setup_.points[state_.action.point].time_s;
      state_.time_bias += tuning_.bias_gain * (ratio - state_.time_bias);
    }
    const double expected = dynamic() * state_.level;
    if (!fresh_ || seen_.foreign || seen_.capped || expected < kLearnableShare * dynamic()) return;
    if (!(expected > 0)) return;
    const double ratio = (*decision_.power_w - setup_.idle_w) / expected;
    surprised_ = ratio > state_.bias * (1 + tuning_.surprise);
    state_.bias += (surprised_ ? 1 : tuning_.bias_gain) * (ratio - state_.bias);
    state_.bias = std::clamp(state_.bias, kBiasLeast, kBiasMost);
  }

  double target_w() {
    switch (policy_.goal) {
      case Goal::power_cap: return policy_.value * (1 - tuning_.margin);
      case Goal::temp_cap: return temperature_budget();
      default: return 0;
    }
  }

  // A budget of watts from degrees: proportional and integral, limited to what can be drawn.
  double temperature_budget() {
    const double period = tuning_.temp_period_s;
    if (!seen_.temp_c || seen_.time_s - state_.temp_step_s < period - 1e-9) {
      return state_.temp_budget_w;
    }
    const double error = policy_.value - tuning_.temp_margin_c - *seen_.temp_c;
    const double before = state_.temp_step_s < 0 ? error : state_.temp_error_c;
    const double gain = tuning_.temp_gain_w_per_c;
    state_.temp_budget_w += gain * (error - before) + gain * period / tuning_.temp_reset_s * error;
    state_.temp_budget_w = std::clamp(state_.temp_budget_w, setup_.idle_w, setup_.limit_w);
    state_.temp_error_c = error;
    state_.temp_step_s = seen_.time_s;
    return state_.temp_budget_w;
  }

  void choose_freely() {
    const Choice choice = choose_point(setup_, state_, policy_);
    take(choice);
    set_level(1);
    if (!choice.reachable) infeasible(choice);
    if (stale()) decision_.status = Status::stale;
  }

  void follow(double target) {
    const Choice choice = choose_point_below(setup_, state_, policy_, target);
    const bool switched = take(choice);
    const bool moved = std::abs(target - state_.target_w) > kTargetChange * target;
    if (seen_.foreign) {
      share_card(target);
    } else if (stale()) {
      decision_.status = Status::stale;
      say("no new reading: by the profile");
      set_level(feed_forward(target * tuning_.stale_share));
    } else if (switched || moved || !state_.started) {
      say(switched ? "another point" : "another target");
      set_level(feed_forward(target));
      jumped_ = true;
    } else if (fresh_ && seen_.busy) {
      trim(target);
    }
    if (!choice.reachable) infeasible(choice);
  }

  double feed_forward(double target) const {
    return level_for(setup_, state_, state_.action.point, target);
  }

  // Others' watts are in the reading: our own are held by what was learned before.
  void share_card(double target) {
    decision_.status = Status::foreign;
    set_level(feed_forward(target));
    if (decision_.power_w) {
      const double own = predicted_power(setup_, state_, state_.action.point, state_.level);
      decision_.foreign_w = std::max(0.0, *decision_.power_w - own);
    }
    say("others on the card");
  }

  // Down at once, up slowly.
  void trim(double target) {
    const double error = target - *decision_.power_w;
    if (std::abs(error) <= tuning_.deadband * target) return;
    const double per_watt = 1 / (state_.bias * dynamic());
    if (error < 0 && surprised_) {
      say("far more power than expected");
      set_level(std::min(state_.level, feed_forward(target)));
    } else if (error < 0) {
      say("too much power");
      set_level(state_.level + tuning_.down_gain * error * per_watt);
    } else if (state_.level < 1) {
      say("power left");
      // Without gaps the level moves in whole multiprocessors: as many as fit below the target.
      const double gain = setup_.levers.pacing ? tuning_.up_gain : 1;
      set_level(state_.level + std::min(gain * error * per_watt, tuning_.up_step));
    }
  }

  void infeasible(const Choice& choice) {
    decision_.status = Status::infeasible;
    decision_.reachable = choice.nearest;
    const bool watts = state_.target_w > 0 || decision_.target_w;
    say(watts ? fmt::format("not below {:.0f} W with these levers", *choice.nearest)
              : fmt::format("no call takes less than {:.3g} ms", 1e3 * *choice.nearest));
  }

  // Takes the choice where it gains enough and the last change is long enough ago.
  bool take(const Choice& choice) {
    if (choice.point == state_.action.point && state_.started) return false;
    const bool must = !std::isfinite(choice.gain);
    const bool rested = seen_.time_s - state_.point_changed_s >= tuning_.dwell_s - 1e-9;
    if (!must && !(choice.gain > tuning_.worth && rested)) return false;
    const bool changed = choice.point != state_.action.point;
    state_.action.point = choice.point;
    state_.point_changed_s = seen_.time_s;
    state_.time_bias = changed ? 1 : state_.time_bias;
    say("point " + setup_.points[choice.point].label);
    return changed;
  }

  void set_level(double level) {
    state_.level = std::clamp(level, least_level(setup_.levers), 1.0);
  }

  // Fewer multiprocessors first, since they cost less work than gaps; the gaps do what is left.
  void set_action() {
    const Action before = state_.action;
    const Levers& levers = setup_.levers;
    if (levers.sm_count > 0) {
      const int wanted = sms_for(state_.level);
      const int now = before.sms == 0 ? levers.sm_count : before.sms;
      const double duty = state_.level * levers.sm_count / now;
      const bool rested = seen_.time_s - state_.sms_changed_s >= tuning_.dwell_s - 1e-9;
      const bool narrow = duty > 1 + 1e-12;  // too few
      const bool wide = duty < 1 - (levers.pacing ? 3.0 * levers.sm_step / now : 1e-12);
      const bool may_widen = narrow || jumped_ || !levers.pacing;  // only narrowing dwells
      if ((narrow || wide) && wanted != now && (rested || may_widen)) {
        state_.action.sms = wanted == levers.sm_count ? 0 : wanted;
        state_.sms_changed_s = seen_.time_s;
      }
      const int running = state_.action.sms == 0 ? levers.sm_count : state_.action.sms;
      state_.action.duty = std::min(1.0, state_.level * levers.sm_count / running);
      if (!levers.pacing) state_.action.duty = 1;
      state_.level = state_.action.duty * running / levers.sm_count;  // what is done, no more
    } else {
      state_.action.duty = levers.pacing ? state_.level : 1;
      state_.level = state_.action.duty;
    }
    if (!(state_.action == before) || !state_.started) state_.acted_s = seen_.time_s;
  }

  int sms_for(double level) const {
    const Levers& levers = setup_.levers;
    const double exact = level * levers.sm_count / levers.sm_step;
    const int steps =
        static_cast<int>(setup_.levers.pacing ? std::ceil(exact - 1e-9) : std::floor(exact + 1e-9));
    return std::clamp(steps * levers.sm_step, levers.sm_least, levers.sm_count);
  }

  State state_;
  const Observation& seen_;
  const Policy& policy_;
  const Setup& setup_;
  const Tuning& tuning_;
  Decision decision_;
  bool fresh_ = false;
  bool surprised_ = false;
  bool jumped_ = false;  // to another target or point: no dwelling then
};

}  // namespace

const char* name_of(Status status) {
  switch (status) {
    case Status::holding: return "holding";
    case Status::stale: return "stale";
    case Status::foreign: return "foreign";
    case Status::infeasible: break;
  }
  return "infeasible";
}

double least_level(const Levers& levers) {
  const double sms =
      levers.sm_count > 0 ? static_cast<double>(levers.sm_least) / levers.sm_count : 1.0;
  return sms * (levers.pacing ? levers.duty_least : 1.0);
}

double predicted_power(const Setup& setup, const State& state, std::size_t point, double level) {
  return setup.idle_w + state.bias * level * dynamic_power(setup, setup.points[point]);
}

Verdict check(const Setup& setup, const Policy& policy) {
  for (const OperatingPoint& point : setup.points) {
    if (!(point.time_s > 0)) return Verdict::no("the profile's '" + point.label + "' has no time");
  }
  const auto fits = [&](const OperatingPoint& p) {
    return p.error <= setup.max_error && p.memory_bytes <= setup.memory_bytes;
  };
  if (std::none_of(setup.points.begin(), setup.points.end(), fits)) {
    return Verdict::no(
        fmt::format("none of the {} operating points is within the error bound {:.3g}",
                    setup.points.size(), setup.max_error));
  }
  const auto usable = [&](const OperatingPoint& p) { return admissible(setup, policy, p); };
  if (std::none_of(setup.points.begin(), setup.points.end(), usable)) {
    return Verdict::no(fmt::format(
        "policy {} needs points whose power was measured, and there are none", to_text(policy)));
  }
  return Verdict::yes();
}

Step step(const State& state, const Observation& seen, const Policy& policy, const Setup& setup) {
  return Stepper(state, seen, policy, setup).run();
}

}  // namespace dfa::power
