#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dfa/error.h"
#include "power/lent_levers.h"
#include "sensors/gpu/control.h"

namespace dfa::govern {

// What a control lends, as levers of a policy. The control must outlive them.
power::Lent lent_by(sensors::CardControl& control, const sensors::PowerLimits& limits);

// The levers of a card for as long as this lives: a thread of its own renews their lease, so that
// a loop whose steps are long keeps them, and a process that stands still gives them back.
class HeldLevers {
 public:
  // Takes the card by its PCI bus id or UUID, for lease_s seconds at a time. Throws Unsupported
  // with the reason where it is not lent.
  HeldLevers(std::unique_ptr<sensors::CardControl> control, const std::string& card,
             double lease_s);
  ~HeldLevers();
  HeldLevers(const HeldLevers&) = delete;
  HeldLevers& operator=(const HeldLevers&) = delete;

  power::Lent lent();

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
  std::optional<std::string> lost_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dfa::govern
