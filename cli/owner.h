#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "contract/device.h"
#include "power/lent_limit.h"
#include "sensors/nvml/guardian.h"

namespace dfa::cli {

// Options with which the owner of a card lends its power limit and its clocks for one run.
struct OwnerOptions {
  bool allowed = false;
  std::string card;
  std::string power_limit;
  std::string clocks;

  void add_to(CLI::App& command);
};

// The card as the options say, and as it was when this ends. Without the permission it does
// nothing at all.
class LentCard {
 public:
  // Before anything has touched the GPU. Throws InvalidArgument for options that need
  // --allow-privileged and lack it.
  explicit LentCard(const OwnerOptions& options);

  // Throws Unsupported where the card or the system does not allow it.
  void take(const GpuIdentity& gpu);

  std::optional<power::Limit> limit();
  Verdict end();  // puts the card back: why that, or a change on the way, was refused

 private:
  OwnerOptions options_;
  std::optional<double> fixed_w_;
  std::optional<std::pair<double, double>> clocks_hz_;
  std::unique_ptr<nvml::Guardian> guardian_;
  nvml::PowerLimits limits_;
};

}  // namespace dfa::cli
