#pragma once

#include <optional>
#include <string>

#include "contract/operating_point.h"

namespace dfa::profile {

// What a measurement holds for: it is worth nothing on another card, and doubtful with another
// driver or other kernels.
struct Machine {
  std::string card;  // the name and, where there is one, the UUID or PCI id
  std::string driver;
  std::string kernels;  // what they are made from, as the backend tells

  bool operator==(const Machine&) const = default;
};

// One way to do one problem, at the card's own clock or a locked one, measured once.
struct Row {
  Machine machine;
  std::string problem;  // canonical line
  std::string backend;
  OperatingPoint point;  // label: the configuration text
  double spread = 0;     // of the time, relative
  std::optional<double> temp_c{};
  std::string date;  // UTC, 2026-01-31T12:00:00Z
};

}  // namespace dfa::profile
