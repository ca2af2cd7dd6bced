#pragma once

#include <optional>
#include <span>

#include "monitor/watch.h"

namespace dfa::monitor {

// One number of a card, for Prometheus, JSON and CSV alike.
struct Column {
  const char* field;  // in JSON and CSV, with its SI unit
  const char* name;   // of the metric; its unit stands in the help
  const char* type;
  const char* help;
  double factor;                                   // from the field's unit to the metric's
  std::optional<double> (*value)(const CardNow&);  // empty where the card does not tell
};

std::span<const Column> columns();

}  // namespace dfa::monitor
