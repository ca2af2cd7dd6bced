#pragma once

#include <optional>
#include <string>

#include "sensors/nvml/privileged_controls.h"

namespace dfa::nvml {

// What a card is, and what it takes, without its levers being taken.
struct CardIdentity {
  std::string pci_id;
  std::string uuid;
  PowerLimits limits;
  std::string name;
};

// A process of its own that holds the owner's levers of a card for this one. When this process
// ends, in whatever way, the connection between them ends, and it puts the card back as it was. It
// hears no signal of a terminal, and of what this process has open it keeps the connection and the
// standard streams alone. One thread at a time may talk to it.
class RestoreDaemon final : public sensors::CardControl {
 public:
  static constexpr double kPatience = 20;  // s; drivers that are well take milliseconds

  // Forks: call it before there are threads and before CUDA or NVML were used. Throws Unsupported
  // when the system has no process left. An answer that takes longer than `patience_s` is a reason.
  explicit RestoreDaemon(double patience_s = kPatience);
  ~RestoreDaemon() override;  // as end()
  RestoreDaemon(const RestoreDaemon&) = delete;
  RestoreDaemon& operator=(const RestoreDaemon&) = delete;

  Value<CardIdentity> identify(const std::string& card);
  Verdict has_clock(const std::string& card, const Range& hz);  // one there, likewise
  Value<PowerLimits> open(const std::string& card) override;
  Verdict keep(double) override;  // as long as it lives
  Verdict set_power_limit(double watts) override;
  Verdict lock_clocks(double least_hz, double most_hz) override;
  Verdict free_power_limit();
  Verdict unlock_clocks() override;
  std::optional<Range> clocks_hz() const override { return kAnyClocks; }
  void request_power_limit(double watts) override;
  void request_clocks(double hz) override;

  // Ends the process too, unless its driver does not answer: it then ends when that does.
  Verdict end() override;

  int pid() const { return pid_; }
  int connection() const { return connection_; }  // which poll() finds closed when it has ended

 private:
  Value<std::string> ask(const std::string& request);
  void request(const std::string& text);
  Verdict send(const std::string& request, int flags = 0);
  Value<std::string> answer();
  Verdict collect();

  const double patience_s_;
  int pid_ = -1;
  int connection_ = -1;
  int owed_ = 0;     // answers that nobody waited for
  Verdict refused_;  // the first of them that was a refusal
};

}  // namespace dfa::nvml
