#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "contract/device.h"
#include "power/lent_levers.h"
#include "power/policy.h"
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

  void add_to(CLI::App& command);

  // What a policy turns is asked of the daemon where nothing else is said.
  void ask_for(const power::Policy& policy) { asks = asks || (policy.turns_card() && !allowed); }
};

// The card as the options say, and as it was when this ends. Without the permission it does
// nothing at all.
class LentCard {
 public:
  // Before anything has touched the GPU. Throws InvalidArgument for options that need
  // --allow-privileged or --privileges and lack them, Unsupported where no daemon answers.
  explicit LentCard(const OwnerOptions& options);

  // For a run of so many seconds. Throws Unsupported where the card or the system does not allow
  // it.
  void take(const GpuIdentity& gpu, double seconds);
  void keep(double seconds);  // anew from now on; likewise

  power::Lent lent();
  Verdict end();  // puts the card back: why that, or a change on the way, was refused

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  void require(const Verdict& verdict) const;

  OwnerOptions options_;
  std::optional<double> fixed_w_;
  std::optional<std::pair<double, double>> clocks_hz_;
  std::unique_ptr<sensors::CardControl> control_;  // null: nothing is lent
  sensors::PowerLimits limits_;
};

}  // namespace dfa::cli
