#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/device.h"
#include "power/lent_levers.h"
#include "power/policy.h"
#include "run/held_levers.h"
#include "sensors/gpu/control.h"

namespace dfa::cli {

// Options with which a card's power limit and clocks are lent for one run: by its owner, who runs
// this, or by the daemon that the owner has set up.
struct OwnerOptions {
  bool allowed = false;
  bool asks = false;   // the daemon
  std::string socket;  // of the daemon; empty: DFA_PRIVILEGES
  std::string card;
  std::string power_limit;
  std::string clocks;

  void add_permission(CLI::App& command);  // allowed, asks, socket, card
  void add_to(CLI::App& command);          // and what holds for the whole run

  // What a policy turns is asked of the daemon where nothing else is said.
  void ask_for(const power::Policy& policy) { asks = asks || (policy.turns_card() && !allowed); }
};

// The card as the options say, and as it was when this ends. Without the permission it does
// nothing at all.
class LentCard {
 public:
  static constexpr double kLease = 60;  // s, renewed long before

  // Before anything has touched the GPU. Throws InvalidArgument for options that need
  // --allow-privileged or --privileges and lack them, Unsupported where no daemon answers.
  explicit LentCard(const OwnerOptions& options);

  // For a run of so many seconds. Throws Unsupported where the card or the system does not allow
  // it.
  void take(const GpuIdentity& gpu, double seconds);
  // Between the two: throws Unsupported where the clock of a policy or of a profile's row is lent
  // and the card has none such.
  void require_clock(const power::Policy& policy) const;
  void require_clock(const OperatingPoint& point) const;

  // Anew from now on, likewise, and renewed from now on: for so many seconds at a time.
  void hold(double seconds);
  double lease_s() const { return lease_s_; }  // that is lent at a time, a minute at most

  // After hold().
  std::vector<double> clocks_of(const std::string& text) const;  // as run::clocks_of
  void lock_clock(double hz);  // 0: the card's own; throws Unsupported
  power::Lent lent() const;
  Verdict end();  // puts the card back: why that, or a change on the way, was refused

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  void require(const Verdict& verdict) const;

  OwnerOptions options_;
  std::string card_;  // that was taken
  std::optional<double> fixed_w_;
  std::optional<std::pair<double, double>> clocks_hz_;
  double lease_s_ = kLease;
  std::unique_ptr<sensors::CardControl> control_;  // null: nothing is lent, or it is in held_
  sensors::PowerLimits limits_;
  std::unique_ptr<run::HeldLevers> held_;
};

}  // namespace dfa::cli
