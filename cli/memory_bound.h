#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

#include "cli/values.h"
#include "run/points.h"

namespace dfa::cli {

// --memory: what plans may take beside the tensors.
inline void add_memory_bound(CLI::App& command, run::PointOptions& points) {
  command
      .add_option("--memory", points.memory_bytes,
                  "most that a plan may take beside the tensors, as 512MB or 2GiB: bounds stored "
                  "probabilities and what is quantised (nine tenths of what is free)")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_text());  // runs first
}

}  // namespace dfa::cli
