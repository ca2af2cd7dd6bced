#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sensors/gpu/control.h"
#include "sensors/nvml/device.h"

// What changes a card: its power limit and its clocks. For the card's owner alone, and kept apart
// from everything that reads. Whoever may be ended at any moment uses a RestoreDaemon instead.
namespace dfa::nvml {

using sensors::PowerLimits;

// NVML takes any clocks and keeps to those that the card has.
inline constexpr Range kAnyClocks{1e6, 99999e6};

// What is set and what may be set. Only reads.
Value<PowerLimits> read_power_limits(const Device& device);

// Remembers on disk what it found, for as long as the card is not as it was.
class PrivilegedControls {
 public:
  struct Opened {
    std::unique_ptr<PrivilegedControls> levers;
    Verdict status;
  };

  // Undoes first what a run that was killed has left behind. Sets the limit that is set already, to
  // learn whether this may be done at all. Refused while another process holds the card's levers.
  static Opened open(const Device& device);
  ~PrivilegedControls();  // restores
  PrivilegedControls(const PrivilegedControls&) = delete;
  PrivilegedControls& operator=(const PrivilegedControls&) = delete;

  const PowerLimits& limits() const { return limits_; }
  Verdict set_power_limit(double watts);
  Verdict free_power_limit();                            // as it was found
  Verdict lock_clocks(double least_hz, double most_hz);  // refused where the card has none there
  Verdict unlock_clocks();

  // Gives the levers back: the limit as it was found; clocks unlocked, since NVML does not tell
  // what was locked before. Where that failed they are held on, and it may be tried again.
  Verdict restore();

 private:
  struct Api;
  class Memory;

  PrivilegedControls(const Device& device, std::unique_ptr<Api> api);
  Verdict take();
  Verdict undo_leftover();

  Device device_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<Memory> memory_;        // null: the levers were given back
  Value<std::vector<double>> clocks_hz_;  // asked for once
  PowerLimits limits_;
  unsigned found_mw_ = 0;
  bool limit_changed_ = false;
  bool clocks_locked_ = false;
};

}  // namespace dfa::nvml
