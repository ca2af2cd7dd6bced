#include "power/choose.h"

#include <algorithm>
#include <limits>

namespace dfa::power {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The cheapest of the admissible points for which `allowed` holds, by `cost`; none: empty. A locked
// clock has to be worth it, as a change has: the card is turned for nothing less.
template <typename Allowed, typename Cost>
std::optional<std::size_t> cheapest(const Setup& setup, const State& state, const Policy& policy,
                                    const Allowed& allowed, const Cost& cost) {
  std::optional<std::size_t> best;
  double least = kInfinity;
  for (std::size_t i = 0; i < setup.points.size(); ++i) {
    if (!admissible(setup, state, policy, i) || !allowed(i)) continue;
    const double weighed = cost(i) * (setup.points[i].clock_hz ? setup.settings.worth : 1);
    if (!(weighed < least)) continue;
    least = weighed;
    best = i;
  }
  return best;
}

template <typename Cost>
double gain_of(const Setup& setup, const State& state, const Policy& policy, std::size_t best,
               bool current_allowed, const Cost& cost) {
  const bool stays =
      state.started && current_allowed && admissible(setup, state, policy, state.action.point);
  return stays ? cost(state.action.point) / cost(best) : kInfinity;
}

}  // namespace

bool lends(const Levers& levers, double clock_hz) {
  return levers.clock_most_hz > 0 && clock_hz >= levers.clock_least_hz &&
         clock_hz <= levers.clock_most_hz;
}

double limit_for(const Setup& setup, const Policy& policy) {
  const Levers& levers = setup.levers;
  const auto cap_w = policy.power_cap_w();
  if (!(levers.limit_most_w > 0) || !cap_w) return 0;
  return std::clamp(*cap_w * (1 - setup.settings.limit_margin), levers.limit_least_w,
                    levers.limit_most_w);
}

bool usable(const Setup& setup, const Policy& policy, const OperatingPoint& point) {
  if (point.memory_bytes > setup.memory_bytes) return false;
  if (point.clock_hz) {
    if (!lends(setup.levers, *point.clock_hz) || policy.turns_card()) return false;
    const double limit_w = limit_for(setup, policy);
    if (limit_w > 0 && limit_w <= policy.value) return false;
  }
  if (policy.is_cap()) return point.power_w && *point.power_w > setup.idle_w;
  return !policy.needs_joules() || point.energy_j;
}

bool admissible(const Setup& setup, const State& state, const Policy& policy, std::size_t point) {
  const auto runs = [&](const OperatingPoint& one) {
    return one.load == state.load && usable(setup, policy, one);
  };
  if (!runs(setup.points[point])) return false;
  double least = kInfinity;
  for (const OperatingPoint& other : setup.points) {
    if (runs(other)) least = std::min(least, other.error);
  }
  return setup.points[point].error * state.error_scale <=
         std::max(setup.max_error, least * state.error_scale);
}

double dynamic_power(const Setup& setup, const OperatingPoint& point) {
  return point.dynamic_w.value_or(point.power_w.value_or(setup.idle_w) - setup.idle_w);
}

Levers levers_of(const Setup& setup, std::size_t point) {
  Levers levers = setup.levers;
  if (!setup.points[point].takes_sm_budget) levers.sm_count = 0;
  return levers;
}

double level_for(const Setup& setup, const State& state, std::size_t point, double target_w) {
  return (target_w - setup.idle_w) / (state.bias * dynamic_power(setup, setup.points[point]));
}

Choice choose_point(const Setup& setup, const State& state, const Policy& policy) {
  const auto time = [&](std::size_t i) { return setup.points[i].time_s * state.time_bias; };
  if (const auto latency_s = policy.latency_s()) {
    const auto in_time = [&](std::size_t i) { return time(i) <= *latency_s; };
    const auto energy = [&](std::size_t i) {  // by time where joules were not measured
      return setup.points[i].energy_j.value_or(1e6 * setup.points[i].time_s);
    };
    if (const auto best = cheapest(setup, state, policy, in_time, energy)) {
      const bool stays = state.started && in_time(state.action.point);
      return {*best, gain_of(setup, state, policy, *best, stays, energy)};
    }
    const auto any = [](std::size_t) { return true; };
    const std::size_t fastest = *cheapest(setup, state, policy, any, time);
    return {fastest, gain_of(setup, state, policy, fastest, true, time), false, time(fastest)};
  }
  const auto cost = [&](std::size_t i) { return policy.cost_of(setup.points[i]); };
  const std::size_t best = *cheapest(
      setup, state, policy, [](std::size_t) { return true; }, cost);
  return {best, gain_of(setup, state, policy, best, true, cost)};
}

Choice choose_point_below(const Setup& setup, const State& state, const Policy& policy,
                          double target_w) {
  const auto least = [&](std::size_t i) { return least_level(levers_of(setup, i)); };
  const auto level = [&](std::size_t i) { return level_for(setup, state, i, target_w); };
  const auto reaches = [&](std::size_t i) { return level(i) >= least(i); };
  // At a lower level the card's own limit no longer holds the clock down.
  const auto time = [&](std::size_t i) {
    const OperatingPoint& point = setup.points[i];
    return point.time_s * std::max(1.0, point.clock_share / level(i));
  };
  // Gaps have to be worth it beside a point that needs none, as watts swing with them.
  const auto weighed = [&](std::size_t i) {
    return time(i) * (level(i) < 1 ? setup.settings.worth : 1);
  };
  if (const auto best = cheapest(setup, state, policy, reaches, weighed)) {
    const bool stays = state.started && reaches(state.action.point);
    return {*best, gain_of(setup, state, policy, *best, stays, time)};
  }
  const auto power = [&](std::size_t i) { return predicted_power(setup, state, i, least(i)); };
  const std::size_t frugal = *cheapest(
      setup, state, policy, [](std::size_t) { return true; }, power);
  return {frugal, gain_of(setup, state, policy, frugal, true, power), false, power(frugal)};
}

}  // namespace dfa::power
