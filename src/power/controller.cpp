#include "power/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/enum_table.h"
#include "power/choose.h"

namespace dfa::power {
namespace {

constexpr auto kStatuses = enum_table<PolicyStatus>({{PolicyStatus::holding, "holding"},
                                                     {PolicyStatus::stale, "stale"},
                                                     {PolicyStatus::foreign, "foreign"},
                                                     {PolicyStatus::infeasible, "infeasible"}});
constexpr double kBiasLeast = 0.3, kBiasMost = 3;
constexpr double kLearnableShare = 0.15;  // of a point's dynamic power: less says nothing of it
constexpr double kNoiseGain = 0.1;
constexpr double kWorstScale = 1e12;     // of errors, where they are infinite
constexpr double kTargetChange = 0.005;  // smaller ones are left to the trim
constexpr double kSteadyStep = 0.1;      // s: up to it means of a second are held
constexpr double kLongStep = 0.6;        // s: from here on a second holds no step and its gap
constexpr double kCreep = 0.1;           // of the target: a change that is no jump

// One step in the making.
class Stepper {
 public:
  Stepper(const State& state, const Observation& seen, const Policy& policy, const Setup& setup)
      : state_(state), seen_(seen), policy_(policy), setup_(setup), settings_(setup.settings) {
    decision_.time_s = seen.time_s;
    decision_.temp_c = seen.temp_c;
    decision_.mean_w = seen.mean_w;
  }

  ControlStep run() {
    if (!state_.started) begin();
    if (state_.action.clock_hz > 0 && !lends(setup_.levers, state_.action.clock_hz)) lose_clock();
    if (state_.load != seen_.load) take_load();
    read_power();
    learn();
    watch_errors();
    const double target = target_w();
    if (target > 0) {
      decision_.target_w = target;
      follow(target);
    } else {
      choose_freely();
    }
    if (state_.error_scale > 1) tell_inexact();
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

  // Another problem: what is known of the card stays, what was seen of the last second does not
  // tell.
  void take_load() {
    state_.load = seen_.load;
    state_.dose_count = 0;
    state_.low_readings = 0;
    state_.steady_s = seen_.time_s;
    say("another load");
  }

  // The card was put back: what it draws since tells nothing of the locked clock.
  void lose_clock() {
    state_.bias = state_.time_bias = 1;
    state_.dose_count = 0;
    state_.low_readings = 0;
    state_.steady_s = state_.acted_s = seen_.time_s;
    say("clocks are no longer lent");
  }

  void say(const std::string& why) { decision_.why += (decision_.why.empty() ? "" : "; ") + why; }

  double dynamic() const { return dynamic_power(setup_, setup_.points[state_.action.point]); }

  // Does it run at the clock that the profile measured?
  bool at_its_clock() const { return state_.action.clock_hz == clock_of(state_.action.point); }
  double clock_of(std::size_t point) const { return setup_.points[point].clock_hz.value_or(0); }

  std::optional<double> predicted() const {
    const bool known = setup_.points[state_.action.point].power_w.has_value();
    if (!known || !at_its_clock()) return std::nullopt;
    return predicted_power(setup_, state_, state_.action.point, state_.level);
  }

  // A reading counts once, and only where its time lies after the last action.
  void read_power() {
    const auto& power = seen_.power;
    if (!power || !std::isfinite(power->value) || !(power->value > 0)) return;
    if (!(power->time_s > state_.power_read_s)) return;
    state_.power_read_s = power->time_s;
    decision_.power_w = power->value;
    fresh_ = power->time_s - settings_.reading_s >= state_.acted_s - 1e-9;
  }

  bool stale() const { return seen_.time_s - state_.power_read_s > settings_.stale_s; }

  // Keeps what the levels of the last seconds let through.
  void keep_dose() {
    auto& doses = state_.doses;
    const Dose last = doses[0];
    const double seconds = state_.dose_count > 0 ? seen_.time_s - last.time_s : 0;
    if (seconds < 0) state_.dose_count = 0;  // time went back
    std::copy_backward(doses.begin(), doses.end() - 1, doses.end());
    doses[0] = {seen_.time_s,
                seconds > 0 ? last.dynamic_j + dynamic() * state_.level * seconds : 0};
    state_.dose_count = std::min<int>(state_.dose_count + 1, static_cast<int>(doses.size()));
  }

  // Mean dynamic power that the profile alone expects of the last second; 0: not known.
  double expected_mean() const {
    const auto& doses = state_.doses;
    const double from = seen_.time_s - 1;
    for (int i = 1; i < state_.dose_count; ++i) {
      const Dose &later = doses[static_cast<std::size_t>(i - 1)],
                 &earlier = doses[static_cast<std::size_t>(i)];
      if (earlier.time_s > from) continue;
      const double span = later.time_s - earlier.time_s;
      const double part = span > 0 ? (from - earlier.time_s) / span : 0;
      return doses[0].dynamic_j - earlier.dynamic_j - part * (later.dynamic_j - earlier.dynamic_j);
    }
    return 0;
  }

  void learn() {
    keep_dose();
    // At another clock than the profile's a point draws something else: that is no bias.
    if (!state_.started || !seen_.busy || seen_.foreign || !at_its_clock()) {
      state_.steady_s = seen_.time_s;
      state_.acted_s = seen_.time_s;  // what is read before work begins says nothing of it
      return;
    }
    // Means of a second hold under the card's own limit, too: what counts is how far they are
    // above.
    if (seen_.capped && !means_alone()) state_.steady_s = seen_.time_s;
    learn_time();
    if (!means_alone()) learn_from_instant();
    learn_from_mean();
    state_.bias = std::clamp(state_.bias, kBiasLeast, kBiasMost);
  }

  void learn_time() {
    if (!seen_.call_s || !(*seen_.call_s > 0) || state_.action.sms != 0) return;
    // For a while calls of the point before are told, at its clock.
    if (seen_.time_s - state_.point_changed_s < settings_.dwell_s) return;
    const double ratio = *seen_.call_s / setup_.points[state_.action.point].time_s;
    state_.time_bias += settings_.bias_gain * (ratio - state_.time_bias);
  }

  // What an instant shows is noisy where gaps are long against its 25 ms: it teaches at once what
  // is beyond the noise, and little else. The mean of a second knows better, a second later.
  void learn_from_instant() {
    const double expected = dynamic() * state_.level;
    // By what is believed to be drawn: a bias that was learned too high lowers the level, and is to
    // be found out there.
    if (!fresh_ || !(state_.bias * expected > kLearnableShare * dynamic())) return;
    const double ratio = (*decision_.power_w - setup_.idle_w) / expected;
    const double off = ratio / state_.bias - 1;
    if (seen_.capped && off < 0) return;  // the card's own limit hides what it would draw
    if (std::abs(off) > std::max(settings_.surprise, settings_.noises * state_.noise)) {
      // Too much counts at once, too little when it is seen twice.
      state_.low_readings = off < 0 ? state_.low_readings + 1 : 0;
      if (state_.low_readings == 1) return;
      say(off > 0 ? "far more power than expected" : "far less power than expected");
      state_.bias = ratio;
      state_.steady_s = seen_.time_s;
      return;
    }
    state_.low_readings = 0;
    state_.noise += kNoiseGain * (std::abs(off) - state_.noise);
    if (!mean_tells()) state_.bias += settings_.bias_gain * (ratio - state_.bias);
  }

  bool means_alone() const { return !settings_.instants && seen_.mean_w; }

  bool mean_tells() const {
    return seen_.mean_w && seen_.time_s - state_.steady_s >= settings_.mean_s;
  }

  void learn_from_mean() {
    if (!mean_tells() || !(*seen_.mean_w > setup_.idle_w)) return;
    const double expected = expected_mean();
    if (!(expected > kLearnableShare * dynamic() * state_.level) || stale()) return;
    const double ratio = (*seen_.mean_w - setup_.idle_w) / expected;
    const double off = ratio - state_.bias;
    const double swing = state_.bias * dynamic() * step_more() * (1 - state_.level) / expected;
    const double within = std::clamp(off, -swing, swing);
    state_.bias +=
        long_share() * (settings_.mean_gain * (off - within) + settings_.swing_gain * within);
  }

  // Where a second shows a step or its gap, not what they make together, it teaches the less, the
  // longer they are.
  double long_share() const {
    const double step_s = seen_.step_s.value_or(0);
    return step_s > kLongStep ? std::pow(kSteadyStep / step_s, 2) : 1;
  }

  // Seconds of work that one second may hold more than the share of another, at rest between: a
  // step. Where steps are so long that means of a second cannot be held, none: their mean is.
  double step_more() const {
    const double step_s = std::max(0.0, seen_.step_s.value_or(0));
    return std::min(step_s, std::max(0.0, 3 * kSteadyStep - 2 * step_s));
  }

  // An error above the bound: inputs are harder than those of the profile, for every point.
  void watch_errors() {
    if (!seen_.error) return;
    const double error = seen_.error->value;
    decision_.error = error;
    if (error <= setup_.max_error) return;
    const double expected = setup_.points[seen_.error->point].error;
    const double scale = error < kWorstScale * expected ? error / expected : kWorstScale;
    if (!(scale > state_.error_scale)) return;
    state_.error_scale = scale;
    say(fmt::format("error {:.2g} above the bound {:.2g}", error, setup_.max_error));
  }

  void tell_inexact() {
    const OperatingPoint& point = setup_.points[state_.action.point];
    if (point.error * state_.error_scale <= setup_.max_error) return;
    decision_.status = PolicyStatus::infeasible;
    say(fmt::format("no point is within the error bound {:.2g} for these inputs",
                    setup_.max_error));
  }

  double target_w() {
    if (const auto cap_w = policy_.power_cap_w()) return *cap_w * (1 - settings_.margin);
    return policy_.temp_cap_c() ? temperature_budget() : 0;
  }

  // A budget of watts from degrees: proportional and integral, limited to what can be drawn.
  double temperature_budget() {
    const double period = settings_.temp_period_s;
    if (!seen_.temp_c || seen_.time_s - state_.temp_step_s < period - 1e-9) {
      return state_.temp_budget_w;
    }
    const double error = policy_.value - settings_.temp_margin_c - *seen_.temp_c;
    const double before = state_.temp_step_s < 0 ? error : state_.temp_error_c;
    const double gain = settings_.temp_gain_w_per_c;
    state_.temp_budget_w +=
        gain * (error - before) + gain * period / settings_.temp_reset_s * error;
    // No more than what the point draws at full speed and, for one that draws more, the watts that
    // the degrees left are worth: what is not drawn would be taken back too late.
    const double most =
        predicted_power(setup_, state_, state_.action.point, 1) + gain * std::max(0.0, error);
    state_.temp_budget_w =
        std::clamp(state_.temp_budget_w, setup_.idle_w, std::min(most, setup_.limit_w));
    state_.temp_error_c = error;
    state_.temp_step_s = seen_.time_s;
    return state_.temp_budget_w;
  }

  void choose_freely() {
    const Verdict lent = check_levers(setup_.levers, policy_);
    const auto limit_w = lent ? policy_.limit_w() : std::nullopt;
    const auto clock_hz = lent ? policy_.clock_hz() : std::nullopt;
    const Choice choice = limit_w ? choose_point_below(setup_, state_, policy_, *limit_w)
                                  : choose_point(setup_, state_, policy_);
    take(choice);
    state_.action.limit_w = limit_w.value_or(0);
    state_.action.clock_hz = clock_hz.value_or(clock_of(state_.action.point));
    set_level(1);
    if (!choice.reachable) infeasible(choice);
    if (stale()) decision_.status = PolicyStatus::stale;
    if (!lent) {
      decision_.status = PolicyStatus::infeasible;
      say(lent.reason);
    }
  }

  void follow(double target) {
    const Choice choice = choose_point_below(setup_, state_, policy_, target);
    const bool switched = take(choice);
    state_.action.limit_w = limit_for(setup_, policy_);
    state_.action.clock_hz = clock_of(state_.action.point);
    const bool moved = std::abs(target - state_.target_w) > kTargetChange * target;
    if (state_.action.limit_w > 0 && state_.action.limit_w <= policy_.value) {
      hold_by_limit(switched || moved || !state_.started);
      return;
    }
    if (seen_.foreign) {
      share_card(target);
    } else if (stale()) {
      decision_.status = PolicyStatus::stale;
      say(seen_.unread.empty() ? "no new reading: by the profile"
                               : "no new reading (" + seen_.unread + "): by the profile");
      set_level(feed_forward(target * settings_.stale_share));
    } else if (switched || moved || !state_.started) {
      say(switched ? "another point" : "another target");
      set_level(feed_forward(target));
      jumped_ = true;
      // The levels of the last second are known: a target that creeps, as a lease does, leaves the
      // mean comparable.
      const bool crept =
          !switched && state_.started && std::abs(target - state_.target_w) < kCreep * target;
      if (!means_alone() || !crept) state_.steady_s = seen_.time_s;
    } else if (seen_.busy) {
      trim(target);
    }
    if (policy_.temp_cap_c()) {
      watch_cooling(choice);
      tell_blind();
    } else if (!choice.reachable) {
      infeasible(choice);
    }
  }

  // The card's own limit holds the cap, by its clock; where that is at its lowest, gaps do the
  // rest, as means of a second show.
  void hold_by_limit(bool anew) {
    const double cap_w = *policy_.power_cap_w();
    if (anew) {
      set_level(1);
      state_.limit_judged_s = seen_.time_s;
      return;
    }
    if (!seen_.mean_w || seen_.time_s - state_.limit_judged_s < 2 * settings_.mean_s) return;
    const double mean_w = *seen_.mean_w,
                 least = least_level(levers_of(setup_, state_.action.point));
    const bool spare = state_.level < 1 && mean_w < cap_w * (1 - 2 * settings_.limit_margin);
    if (!(mean_w > cap_w) && !spare) return;
    state_.limit_judged_s = seen_.time_s;
    if (spare) return set_level(state_.level + settings_.up_step);
    if (state_.level <= least) {
      decision_.status = PolicyStatus::infeasible;
      decision_.reachable = mean_w;
      say(fmt::format("{:.0f} W by the card's own limit and the longest gaps", mean_w));
      return;
    }
    set_level(state_.level * (cap_w * (1 - settings_.limit_margin) - setup_.idle_w) /
              (mean_w - setup_.idle_w));
    say("the card's own limit alone does not hold the cap");
  }

  // Less than the levers' least is asked for. Heat takes its time to leave: what cannot be had is
  // told once the card cools too slowly to come down to the cap.
  void watch_cooling(const Choice& choice) {
    if (choice.reachable || !seen_.temp_c) {
      state_.colder_count = 0;
      return;
    }
    auto& colder = state_.colder;
    if (state_.colder_count == 0 || *seen_.temp_c < colder[0].value) {
      std::copy_backward(colder.begin(), colder.end() - 1, colder.end());
      colder[0] = {seen_.time_s, *seen_.temp_c};
      state_.colder_count = std::min<int>(state_.colder_count + 1, static_cast<int>(colder.size()));
    }
    const double left = cooling_c_per_s() * settings_.temp_time_s;
    if (!(colder[0].value - settings_.temp_doubt * left > policy_.value)) return;
    decision_.status = PolicyStatus::infeasible;
    decision_.reachable = colder[0].value - left;
    say(fmt::format("about {:.0f} C at {:.0f} W, the least with these levers", *decision_.reachable,
                    *choice.nearest));
  }

  void tell_blind() {
    if (seen_.temp_c) state_.temp_read_s = seen_.time_s;
    const double since = std::max(state_.temp_read_s, state_.started_s);
    if (seen_.time_s - since <= settings_.temp_stale_s) return;
    decision_.status = PolicyStatus::stale;
    say("no temperature: the budget stands");
  }

  // The least of what the last two degrees, the last one, and the time since then tell, as heat
  // leaves ever more slowly; infinite at first.
  double cooling_c_per_s() const {
    const auto& colder = state_.colder;
    double least = 1 / std::max(1e-9, seen_.time_s - colder[0].time_s);
    if (state_.colder_count < static_cast<int>(colder.size())) return least;
    for (std::size_t n = 1; n < colder.size(); ++n) {
      least = std::min(least,
                       (colder[n].value - colder[0].value) / (colder[0].time_s - colder[n].time_s));
    }
    return least;
  }

  // A second that begins with a step holds up to (1 - level) of one more than its share, which is
  // left below a cap.
  double feed_forward(double target) const {
    const double level = level_for(setup_, state_, state_.action.point, target);
    const double more = step_more();
    if (!(more > 0) || !policy_.power_cap_w() || level >= 1) return level;
    return std::max(0.0, (level - more) / (1 - more));
  }

  // Others' watts are in the reading: our own are held by what was learned before.
  void share_card(double target) {
    decision_.status = PolicyStatus::foreign;
    set_level(feed_forward(target));
    if (decision_.power_w) {
      const double own = predicted_power(setup_, state_, state_.action.point, state_.level);
      decision_.foreign_w = std::max(0.0, *decision_.power_w - own);
    }
    say("others on the card");
  }

  // The level that what was learned asks for: down at once, up slowly.
  void trim(double target) {
    const double wanted = feed_forward(target);
    if (wanted < state_.level - settings_.band * state_.level) {
      set_level(wanted);
      say("less");
    } else if (wanted > state_.level + settings_.band * state_.level && state_.level < 1) {
      set_level(std::min(wanted, state_.level + settings_.up_step));
      say("more");
    }
  }

  void infeasible(const Choice& choice) {
    decision_.status = PolicyStatus::infeasible;
    decision_.reachable = choice.nearest;
    const bool watts = state_.target_w > 0 || decision_.target_w;
    say(watts ? fmt::format("not below {:.0f} W with these levers", *choice.nearest)
              : fmt::format("no call takes less than {:.3g} ms", 1e3 * *choice.nearest));
  }

  // Takes the choice where it gains enough and the last change is long enough ago.
  bool take(const Choice& choice) {
    if (choice.point == state_.action.point && state_.started) return false;
    const bool must = !std::isfinite(choice.gain);
    const bool rested = seen_.time_s - state_.point_changed_s >= settings_.dwell_s - 1e-9;
    if (!must && !(choice.gain > settings_.worth && rested)) return false;
    const bool changed = choice.point != state_.action.point;
    const bool configured =
        setup_.points[choice.point].label == setup_.points[state_.action.point].label;
    state_.action.point = choice.point;
    state_.point_changed_s = seen_.time_s;
    state_.time_bias = configured ? state_.time_bias : 1;
    say("point " + text_of(setup_.points[choice.point]));
    return changed;
  }

  void set_level(double level) {
    state_.level = std::clamp(level, least_level(levers_of(setup_, state_.action.point)), 1.0);
  }

  // Fewer multiprocessors first, since they cost less work than gaps; the gaps do what is left.
  void set_action() {
    const Action before = state_.action;
    const Levers levers = levers_of(setup_, state_.action.point);
    if (levers.sm_count > 0) {
      const int wanted = sms_for(state_.level, levers);
      const int now = before.sms == 0 ? levers.sm_count : before.sms;
      const double duty = state_.level * levers.sm_count / now;
      const bool rested = seen_.time_s - state_.sms_changed_s >= settings_.dwell_s - 1e-9;
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
      state_.action.sms = 0;
      state_.action.duty = levers.pacing ? state_.level : 1;
      state_.level = state_.action.duty;
    }
    if (!(state_.action == before) || !state_.started) state_.acted_s = seen_.time_s;
  }

  static int sms_for(double level, const Levers& levers) {
    const double exact = level * levers.sm_count / levers.sm_step;
    const int steps =
        static_cast<int>(levers.pacing ? std::ceil(exact - 1e-9) : std::floor(exact + 1e-9));
    return std::clamp(steps * levers.sm_step, levers.sm_least, levers.sm_count);
  }

  State state_;
  const Observation& seen_;
  const Policy& policy_;
  const Setup& setup_;
  const ControllerSettings& settings_;
  Decision decision_;
  bool fresh_ = false;
  bool jumped_ = false;  // to another target or point: no dwelling then
};

}  // namespace

const char* name_of(PolicyStatus status) { return kStatuses.name(status); }

std::string text_of(const OperatingPoint& point, double clock_hz) {
  if (!(clock_hz > 0)) return point.label;
  return fmt::format("{} at {:g} MHz", point.label, 1e-6 * clock_hz);
}

double least_level(const Levers& levers) {
  const double sms =
      levers.sm_count > 0 ? static_cast<double>(levers.sm_least) / levers.sm_count : 1.0;
  return sms * (levers.pacing ? levers.duty_least : 1.0);
}

double predicted_power(const Setup& setup, const State& state, std::size_t point, double level) {
  return setup.idle_w + state.bias * level * dynamic_power(setup, setup.points[point]);
}

namespace {

Verdict check_lent(const Policy& policy, const char* lever, double value, double least, double most,
                   double unit, const char* of) {
  if (!(most > 0)) {
    return Verdict::no(fmt::format("policy {} turns the card's own {}, which nobody lends here",
                                   to_text(policy), lever));
  }
  if (value >= least && value <= most) return Verdict::yes();
  return Verdict::no(fmt::format("policy {}: the card's own {} is lent from {:g} to {:g} {}",
                                 to_text(policy), lever, least / unit, most / unit, of));
}

}  // namespace

Verdict check_levers(const Levers& levers, const Policy& policy) {
  if (const auto watts = policy.limit_w()) {
    return check_lent(policy, "limit", *watts, levers.limit_least_w, levers.limit_most_w, 1, "W");
  }
  if (const auto hz = policy.clock_hz()) {
    return check_lent(policy, "clock", *hz, levers.clock_least_hz, levers.clock_most_hz, 1e6,
                      "MHz");
  }
  return Verdict::yes();
}

namespace {

bool fits(const Setup& setup, const OperatingPoint& point) {
  return point.error <= setup.max_error && point.memory_bytes <= setup.memory_bytes;
}

// Of a load's points one at the card's own clock can be used, whatever of its levers is lent.
Verdict check_load(const Setup& setup, const Policy& policy, int load) {
  bool own = false;
  for (const OperatingPoint& point : setup.points) {
    if (point.load != load || !fits(setup, point) || point.clock_hz) continue;
    if (usable(setup, policy, point)) return Verdict::yes();
    own = true;
  }
  const char* needs = own ? "points whose power was measured, and there are none"
                          : "a point at the card's own clock, which it has when clocks are no "
                            "longer lent, and there are points at locked clocks alone";
  return Verdict::no(fmt::format("policy {} needs {}", to_text(policy), needs));
}

}  // namespace

Verdict check(const Setup& setup, const Policy& policy) {
  if (const Verdict lent = check_levers(setup.levers, policy); !lent) return lent;
  for (const OperatingPoint& point : setup.points) {
    if (!(point.time_s > 0)) return Verdict::no("the profile's '" + point.label + "' has no time");
  }
  if (std::ranges::none_of(setup.points, [&](const auto& p) { return fits(setup, p); })) {
    return Verdict::no(
        fmt::format("none of the {} operating points is within the error bound {:.3g}",
                    setup.points.size(), setup.max_error));
  }
  for (const OperatingPoint& one : setup.points) {
    if (const Verdict ok = check_load(setup, policy, one.load); !ok) return ok;
  }
  return Verdict::yes();
}

ControlStep step(const State& state, const Observation& seen, const Policy& policy,
                 const Setup& setup) {
  return Stepper(state, seen, policy, setup).run();
}

}  // namespace dfa::power
