#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "contract/clock.h"
#include "power/governor.h"

namespace dfa::power {

// The thread that owns a governor: looks every 10 ms, or as often as is said, steps when there is
// something new. Whatever happens to the sensors, the kernels go on; what the governor makes of it
// is in its decisions.
class Driver {
 public:
  using OnDecision = std::function<void(const Decision&)>;
  static constexpr double kTick = 0.01;

  // The meters of the governor and the clock must outlive the driver; while it runs, nobody else
  // reads these meters. on_decision is called from the thread.
  Driver(Governor& governor, const Clock& clock, OnDecision on_decision = {},
         double tick_s = kTick);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  void start();  // does nothing when it runs already
  void stop();   // returns once the thread has ended

  // From any thread.
  void set_activity(const Activity& activity);
  void set_policy(const Policy& policy);  // throws as Governor::set_policy

  // What steps cost: their time, of the time since start().
  double busy_share() const;

 private:
  void loop();

  Governor& governor_;
  const Clock& clock_;
  OnDecision on_decision_;
  const double tick_s_;       // of the machine's own time, whatever clock it is told
  mutable std::mutex mutex_;  // of everything below, and of the governor
  std::condition_variable wake_;
  Activity activity_;
  bool running_ = false;
  bool stopping_ = false;
  double begin_s_ = 0;
  double stepping_s_ = 0;
  std::thread thread_;
};

}  // namespace dfa::power
