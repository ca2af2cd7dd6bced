#pragma once

#include <optional>
#include <variant>

#include "spec/config.h"
#include "spec/standard_config.h"

namespace dfa {

// What runs FlashAttention, of the passes that a problem asks for.
struct FlashConfig {
  std::optional<ForwardConfig> forward{};
  std::optional<BackwardConfig> backward{};
};

// What a plan runs, as a value. Its text, which a plan prints, is read only where a plan comes from
// a file or was changed by hand.
using PlanConfig = std::variant<FlashConfig, StandardConfig>;

// Do they run the same? Plans are plain fields, which may be changed after they were made.
inline bool runs_the_same(const Plan& a, const Plan& b) {
  return a.problem == b.problem && a.algorithm == b.algorithm && a.config == b.config &&
         a.backward_config == b.backward_config;
}

}  // namespace dfa
