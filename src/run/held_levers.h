#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/quantity.h"
#include "contract/operating_point.h"
#include "dfa/error.h"
#include "power/lent_levers.h"
#include "power/policy.h"
#include "sensors/gpu/control.h"

namespace dfa::run {

// What a control lends, as levers of a policy. The control must outlive them.
power::Lent lent_by(sensors::CardControl& control, const sensors::PowerLimits& limits);

// MHz of "1980,1500,1200MHz" or "1200:1980:60MHz", the highest first. Throws InvalidArgument for
// any other text.
std::vector<double> parse_clocks(const std::string& text);
// Those in Hz, of a card. Throws InvalidArgument that names one which is not lent or which the card
// has not, Unsupported where clocks are not lent or the card does not tell which it has.
std::vector<double> clocks_of(const std::string& text, const std::string& card,
                              const power::Lent& lent);

// Throws Unsupported where the card has no clock of that range, naming the nearest, or does not
// tell which it has: NVML would run it at another in silence.
void require_clocks(const std::string& what, const Range& hz, const std::string& card);
// Likewise of a policy's clock, or of a profile's row, where that is lent.
void require_clock(const power::Policy& policy, const std::string& card, const power::Lent& lent);
void require_clock(const OperatingPoint& point, const std::string& card, const power::Lent& lent);

// The levers of a card for as long as this lives: a thread of its own renews their lease, so that
// a loop whose steps are long keeps them, and a process that stands still gives them back. Once
// they are lost, which it notices in half a second, what it lent turns nothing any more.
class HeldLevers {
 public:
  // Takes the card by its PCI bus id or UUID, for lease_s seconds at a time. Throws Unsupported
  // with the reason where it is not lent.
  HeldLevers(std::unique_ptr<sensors::CardControl> control, const std::string& card,
             double lease_s);
  // Those of a card that was opened, as long as so many seconds are lent at a time.
  HeldLevers(std::unique_ptr<sensors::CardControl>&& control, const sensors::PowerLimits& limits,
             double lease_s);
  ~HeldLevers();
  HeldLevers(const HeldLevers&) = delete;
  HeldLevers& operator=(const HeldLevers&) = delete;

  power::Lent lent();

  // Locks clocks, 0 unlocking them, and waits until it is done. Throws Unsupported with the reason
  // where they are lost or refused.
  void lock_clock(double hz);

  // Why they are gone, from any thread: the daemon has ended, or the card fell off its bus.
  std::optional<std::string> lost() const;

  Verdict end();  // puts the card back: why that, or a change on the way, was refused

 private:
  void renew(double lease_s);
  void stop();

  std::unique_ptr<sensors::CardControl> control_;
  sensors::PowerLimits limits_;
  mutable std::mutex mutex_;  // of everything here
  std::condition_variable wake_;
  mutable std::mutex lost_mutex_;  // of lost_, for which nobody waits on a daemon
  std::optional<std::string> lost_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dfa::run
