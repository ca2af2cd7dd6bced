#pragma once

#include <string>
#include <string_view>

#include "base/enum_table.h"
#include "dfa/attention.h"

namespace dfa {

// What the backward does for the probabilities: makes them anew from q, k (and lse), or reads what
// the forward left for it.
enum class Probabilities : int { recomputed, stored };

inline constexpr auto kProbabilitiesNames = enum_table<Probabilities>(
    {{Probabilities::recomputed, "recomputed"}, {Probabilities::stored, "stored"}});
constexpr const char* name_of(Probabilities probabilities) {
  return kProbabilitiesNames.name(probabilities);
}

// Standard attention has no tiles; this is its one choice. Not among the configurations of kernels
// (forward_config.h, backward_config.h): it changes which kernels run, never one of them.
struct StandardConfig {
  Probabilities probabilities = Probabilities::recomputed;

  constexpr bool stored() const { return probabilities == Probabilities::stored; }
  friend constexpr bool operator==(const StandardConfig&, const StandardConfig&) = default;
};

// "StandardConfig{.probabilities=Probabilities::stored}", as of configurations of kernels.
std::string to_text(const StandardConfig& config);
// Throws InvalidArgument that names what is accepted. Empty text: the default.
StandardConfig parse_standard_config(std::string_view text);

// Do these options ask for standard attention, by its name or by a StandardConfig? Throws
// InvalidArgument where the two contradict each other.
bool asks_standard(const PlanOptions& options);

// What a plan of standard attention says of its configuration: of forward and backward alike.
void describe(Plan& plan, const StandardConfig& config);

}  // namespace dfa
