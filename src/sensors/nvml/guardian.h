#pragma once

#include <optional>
#include <string>

#include "sensors/nvml/owner.h"

namespace dfa::nvml {

// A process of its own that holds the owner's levers of a card for this one. When this process
// ends, in whatever way, the connection between them ends, and it puts the card back as it was. It
// hears no signal of a terminal. One thread at a time may talk to it.
class Guardian {
 public:
  // Forks: call it before there are threads and before CUDA or NVML were used. Throws Unsupported
  // when the system has no process left.
  Guardian();
  ~Guardian();  // as end()
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // Takes the levers of a card by its PCI bus id or UUID.
  Value<PowerLimits> open(const std::string& card);

  Verdict set_power_limit(double watts);
  Verdict lock_clocks(double least_hz, double most_hz);

  // Asks without waiting for the answer; end() tells the first that was a refusal.
  void request_power_limit(double watts);

  // Puts everything back and ends the process: why that could not be done.
  Verdict end();

  int pid() const { return pid_; }

 private:
  Value<std::string> ask(const std::string& request);
  Verdict send(const std::string& request);
  Value<std::string> answer(int flags);
  void collect();

  int pid_ = -1;
  int connection_ = -1;
  int owed_ = 0;     // answers that nobody waited for
  Verdict refused_;  // the first of them that was a refusal
};

}  // namespace dfa::nvml
