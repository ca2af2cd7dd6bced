#include "run/paced_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "dfa/error.h"
#include "measure/statistics.h"
#include "power/choose.h"

namespace dfa::run {
namespace {

constexpr double kSlice = 0.02;     // a duty that rose ends a wait this soon
constexpr double kShortest = 1e-4;  // a sleep overshoots by some 60 us
constexpr std::size_t kFewest = 3;
constexpr double kPatience = 2;  // seconds beyond the calibration without a reading
constexpr double kMostOwed = 1;  // seconds of decode, and of a gap: what a cap is a mean of

}  // namespace

PacedLoop::PacedLoop(const LoopOptions& options, const power::Telemetry& meters, Clock& clock)
    : options_(options), meters_(meters), clock_(clock), policy_(options.policy) {
  const power::Policy& policy = options.policy;
  const bool lent = options.lent.limit || options.lent.clocks;
  if (policy.turns_card() && !lent) {
    throw InvalidArgument(
        fmt::format("policy {} turns a lever of the card's owner, and none is lent; accepted "
                    "here: power_cap:500W, temp_cap:70C",
                    to_text(policy)));
  }
  if (!policy.is_cap() && !policy.turns_card() && options.clocks_hz.empty()) {
    throw InvalidArgument(fmt::format(
        "policy {} is nothing that gaps could hold; accepted here: power_cap:500W, temp_cap:70C, "
        "and any where the loop is measured at several clocks of a card that is lent",
        to_text(policy)));
  }
  if (policy.turns_card() && !options.clocks_hz.empty()) {
    throw InvalidArgument(
        fmt::format("policy {} chooses no clock; accepted without clocks", to_text(policy)));
  }
  if (lent) levers_ = std::make_unique<power::LentLevers>(pacer_, options.lent);
  const Verdict within = power::check_levers(actuator().levers(), policy);
  if (!within) throw Unsupported(within.reason);
  if (meters.power == nullptr) throw Unsupported("a cap needs a power sensor, and there is none");
  if (options.policy.temp_cap_c() && meters.temperature == nullptr) {
    throw Unsupported("a temperature cap needs a temperature sensor, and there is none");
  }
  for (const double hz : options.clocks_hz) {
    if (power::lends(actuator().levers(), hz)) continue;
    throw Unsupported(fmt::format("a clock of {:g} MHz is not lent", 1e-6 * hz));
  }
  clocks_hz_.assign(options.clocks_hz.rbegin(), options.clocks_hz.rend());
  begin_s_ = resumed_s_ = clock.now_s();
}

PacedLoop::~PacedLoop() {
  if (driver_) driver_->stop();
}

std::optional<power::Decision> PacedLoop::last() const {
  const std::lock_guard lock(mutex_);
  std::optional<power::Decision> told = last_;
  if (told && overdrawn_) {
    told->status = power::PolicyStatus::infeasible;
    if (options_.policy.power_cap_w())
      told->reachable = told->mean_w ? told->mean_w : told->power_w;
  }
  return told;
}

std::optional<double> PacedLoop::full_w() const {
  const std::lock_guard lock(policy_mutex_);
  return full_w_;
}

void PacedLoop::set_policy(const power::Policy& policy) {
  const std::lock_guard lock(policy_mutex_);
  if (policy.goal != policy_.goal) {
    throw InvalidArgument(fmt::format("policy {} in the place of {}; accepted: another value of it",
                                      to_text(policy), to_text(policy_)));
  }
  const Verdict within = power::check_levers(actuator().levers(), policy);
  if (!within) throw Unsupported(within.reason);
  policy_ = policy;
  if (driver_) driver_->set_policy(policy);
}

void PacedLoop::lose_levers(const std::string& reason) {
  if (!levers_) return;
  if (policy_.turns_card()) {
    throw Unsupported(fmt::format("policy {}: {}", to_text(policy_), reason));
  }
  {
    const std::lock_guard lock(policy_mutex_);
    driver_.reset();
    levers_.reset();
  }
  clocks_hz_.clear();
  clock_hz_.reset();
  std::erase_if(points_, [](const OperatingPoint& point) { return !!point.clock_hz; });
  if (!points_.empty()) drive();
}

void PacedLoop::pace(Phase phase, double most_s) {
  const double took = clock_.now_s() - resumed_s_;
  if (phase == Phase::decode) {
    decode(took);
  } else {
    times_.add(decoded_s_ + took);
    decoded_s_ = 0;
    overdrawn_ = false;
    if (calibrated()) {
      const bool by_decode = of_time() && decode_steps_ > 0;
      driver_->set_activity(
          {.call_s = by_decode ? std::nullopt : std::optional(took), .step_s = step_s()});
      wait(most_s);
    }
  }
  if (!calibrated()) calibrate(took, phase);
  resumed_s_ = clock_.now_s();
}

// Without a gap: the work is part of the next step that has one. Where no gap is asked for,
// nothing is owed.
void PacedLoop::decode(double took_s) {
  ++decode_steps_;
  if (!calibrated()) return;
  driver_->set_activity({.call_s = took_s, .step_s = step_s()});
  decoded_s_ = pacer_.duty() < 1 ? decoded_s_ + took_s : 0;
  overdrawn_ = decoded_s_ > kMostOwed;
  decoded_s_ = std::min(decoded_s_, kMostOwed);
}

// The first half lets sensors and clocks settle.
void PacedLoop::calibrate(double took_s, Phase phase) {
  const double spent = clock_.now_s() - begin_s_;
  if (spent < options_.calibrate_s / 2) return;
  (phase == Phase::decode ? decodes_s_ : steps_s_).push_back(took_s);
  auto reading = meters_.mean != nullptr ? meters_.mean->read() : std::nullopt;
  if (!reading) reading = meters_.power->read();  // where means stay away, too
  if (reading) readings_w_.push_back(reading->value);
  misses_ = reading ? 0 : misses_ + 1;
  silent_ = misses_ >= kFewest && spent >= options_.calibrate_s + kPatience;
  if (silent_)
    steps_s_.clear(),
        decodes_s_.clear();  // what a step takes is of the time in which there are watts
  if (spent < options_.calibrate_s || readings_w_.size() < kFewest) return;
  add_point();
  if (clocks_hz_.empty()) return drive();
  clock_hz_ = clocks_hz_.back();
  clocks_hz_.pop_back();
  actuator().apply({.clock_hz = *clock_hz_});
  begin_s_ = clock_.now_s();
}

void PacedLoop::add_point() {
  const double watts = measure::summarize(readings_w_).median;
  if (!(watts > options_.idle_w)) {
    throw Unsupported(fmt::format(
        "the loop draws {:.0f} W and the card {:.0f} W when idle: there is nothing to hold", watts,
        options_.idle_w));
  }
  const bool by_decode = steps_s_.empty() || (of_time() && !decodes_s_.empty());
  const double step_s = measure::summarize(by_decode ? decodes_s_ : steps_s_).median;
  points_.push_back({.label = "one step of the loop",
                     .time_s = step_s,
                     .power_w = watts,
                     .energy_j = watts * step_s,
                     .clock_hz = clock_hz_});
  steps_s_.clear();
  decodes_s_.clear();
  readings_w_.clear();
}

void PacedLoop::drive() {
  power::Setup setup;
  setup.points = points_;
  setup.idle_w = options_.idle_w;
  setup.limit_w = options_.limit_w;
  setup.settings.instants = false;  // 25 ms show a step or its gap, not what they make together
  const std::lock_guard lock(policy_mutex_);
  full_w_ = points_.front().power_w;
  governor_ = std::make_unique<power::Governor>(setup, policy_, meters_, actuator());
  driver_ = std::make_unique<power::Driver>(
      *governor_, clock_,
      [this](const power::Decision& made) {
        const std::lock_guard mine(mutex_);
        last_ = made;
      },
      options_.look_s);
  driver_->set_activity({.step_s = step_s()});
  driver_->start();
}

// What is too short for a sleep is owed: the gaps of many short steps are one. So is what is longer
// than a wait may be.
void PacedLoop::wait(double most_s) {
  const double begin = clock_.now_s();
  double left = 0;
  for (;;) {
    const double waited = clock_.now_s() - begin, duty = pacer_.duty();
    left = duty < 1 ? owed_s_ + times_.gap_s(duty) - waited : 0;
    if (std::min(left, most_s - waited) < kShortest) break;
    clock_.sleep_s(std::min({left, most_s - waited, kSlice}));
  }
  owed_s_ = std::clamp(left, 0.0, kMostOwed);
  waited_s_ += clock_.now_s() - begin;
}

}  // namespace dfa::run
