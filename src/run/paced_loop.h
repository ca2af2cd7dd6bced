#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "power/driver.h"
#include "power/lent_levers.h"
#include "power/pacer.h"
#include "run/step_times.h"

namespace dfa::run {

struct LoopOptions {
  power::Policy policy;  // power_cap or temp_cap; limit or clock where that lever is lent
  double idle_w = 0;     // before the loop begins
  double limit_w = 0;    // the card's own
  double calibrate_s =
      2;               // at full speed, to learn what a step draws; the cap may be exceeded then
  power::Lent lent{};  // of the card's own levers, by its owner
  // A step is measured at these locked clocks too, each for calibrate_s after the card's own: then
  // a policy chooses among them, and may be one of time or joules.
  std::vector<double> clocks_hz{};
  double look_s = power::Driver::kTick;  // how often the governor's thread looks
};

// What a step of the loop was, where steps are told apart, as a server's are: a prompt may wait,
// and a token that is late is noticed.
enum class Phase : int {
  prefill,  // or both, or a step of a loop that tells none apart
  decode,   // no gap follows: the step is paid for behind the next one of another phase
};

// Somebody's own loop, a training say, held under a cap by gaps after its steps and by the levers
// of the card that are lent, or run at the clock that a policy chooses. Nothing is known of a step
// but when it ends and what the card drew meanwhile.
class PacedLoop {
 public:
  // The meters and the clock must outlive it; power must be among the meters. Throws
  // InvalidArgument for a policy that is no cap, Unsupported without a sensor.
  PacedLoop(const LoopOptions& options, const power::Telemetry& meters, Clock& clock);
  ~PacedLoop();

  // At the end of each step, when its work is done: waits as the policy asks, but never behind a
  // step of decode and for most_s at most. What is not waited then is owed, of a second's work at
  // most. A policy of time goes by the steps of decode alone, where there were any.
  void pace(Phase phase = Phase::prefill, double most_s = std::numeric_limits<double>::infinity());

  // From now on, from any thread: another value of the same kind of cap. Throws InvalidArgument for
  // another kind.
  void set_policy(const power::Policy& policy);

  // The card was put back: a cap is held by gaps from now on, without what was learned under the
  // levers. Of the thread that calls pace(). Throws Unsupported with that reason where the policy
  // is a lever.
  void lose_levers(const std::string& reason);

  bool calibrated() const { return driver_ != nullptr; }
  // Is nothing held because the power sensor says nothing, so that what the loop draws is not
  // known? From any thread.
  bool silent() const { return silent_; }
  // What the loop drew without gaps, once that is known.
  std::optional<double> full_w() const;
  double duty() const { return pacer_.duty(); }
  double waited_s() const { return waited_s_; }
  long long steps() const { return times_.steps() + decode_steps_; }
  // Of the governor, once there is one. Where the loop has decoded for so long, while the cap asked
  // for gaps, that they are no longer owed, the cap is not held: infeasible. From any thread.
  std::optional<power::Decision> last() const;

 private:
  void calibrate(double took_s, Phase phase);
  void decode(double took_s);
  void add_point();
  void drive();
  bool of_time() const { return options_.policy.latency_s().has_value(); }
  // The work between two gaps, once there was one that ended.
  std::optional<double> step_s() const {
    return times_.steps() > 0 ? std::optional(times_.work_s()) : std::nullopt;
  }
  Actuator& actuator() { return levers_ ? static_cast<Actuator&>(*levers_) : pacer_; }
  void wait(double most_s);

  const LoopOptions options_;
  const power::Telemetry meters_;
  Clock& clock_;
  power::Pacer pacer_;
  std::unique_ptr<power::LentLevers> levers_;  // around it, where the card's are lent
  mutable std::mutex policy_mutex_;            // of policy_ and full_w_, and of making driver_
  power::Policy policy_;
  std::optional<double> full_w_;
  std::unique_ptr<power::Governor> governor_;
  std::unique_ptr<power::Driver> driver_;
  mutable std::mutex mutex_;
  std::optional<power::Decision> last_;
  std::vector<double> steps_s_, decodes_s_, readings_w_;  // of the calibration at one clock
  std::size_t misses_ = 0;  // steps since the last reading of the calibration
  std::atomic<bool> silent_{false}, overdrawn_{false};
  std::vector<double> clocks_hz_;       // still to be measured, the next one last
  std::optional<double> clock_hz_;      // at which it measures
  std::vector<OperatingPoint> points_;  // measured, at the card's own clock first
  StepTimes times_;
  double begin_s_ = 0;  // of the calibration at that clock
  double resumed_s_ = 0, waited_s_ = 0, owed_s_ = 0;
  double decoded_s_ = 0;  // since the last step that could wait, and not paid for yet
  long long decode_steps_ = 0;
};

}  // namespace dfa::run
