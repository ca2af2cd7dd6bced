#pragma once

#include <optional>
#include <span>

#include "monitor/watch.h"

namespace dfa::monitor {

// Prometheus's, of which the unit stands in the help.
struct Metric {
  const char *name, *type, *help;
};

// One number of a card, for Prometheus, JSON and CSV alike.
struct Column {
  const char* field;  // in JSON and CSV, with its SI unit
  Metric metric;
  double factor;                                   // from the field's unit to the metric's
  std::optional<double> (*value)(const CardNow&);  // empty where the card does not tell
};

std::span<const Column> columns();

}  // namespace dfa::monitor
