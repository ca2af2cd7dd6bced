#include "spec/standard_config.h"

#include "dfa/error.h"
#include "spec/passes.h"

namespace dfa {
namespace {

constexpr std::string_view kType = "StandardConfig{";
constexpr std::string_view kField = "probabilities=";
constexpr std::string_view kEnum = "Probabilities::";

void drop_prefix(std::string_view& text, std::string_view prefix) {
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
}

}  // namespace

std::string to_text(const StandardConfig& config) {
  return std::string("StandardConfig{.probabilities=Probabilities::") +
         name_of(config.probabilities) + "}";
}

StandardConfig parse_standard_config(std::string_view text) {
  if (text.empty()) return {};
  std::string_view value = text;
  if (value.starts_with(kType) && value.ends_with('}')) {
    value = value.substr(kType.size(), value.size() - kType.size() - 1);
  }
  drop_prefix(value, ".");
  if (value.starts_with(kField)) {
    value.remove_prefix(kField.size());
    drop_prefix(value, kEnum);
    if (const auto found = kProbabilitiesNames.find(value)) return {*found};
  }
  std::string accepted;
  for (const auto& [one, name] : kProbabilitiesNames) {
    accepted += (accepted.empty() ? "" : ", ") + std::string(kField) + name;
  }
  throw InvalidArgument("config: '" + std::string(text) +
                        "'; standard attention has no tiles, accepted: " + accepted);
}

bool asks_standard(const PlanOptions& options) {
  const bool of_config = options.config.starts_with(kType);
  if (of_config && options.algorithm == Algorithm::flash) {
    throw InvalidArgument("config: '" + options.config +
                          "' is of standard attention and algorithm is flash; accepted: auto, "
                          "standard");
  }
  return of_config || options.algorithm == Algorithm::standard;
}

void describe(Plan& plan, const StandardConfig& config) {
  plan.algorithm = Algorithm::standard;
  if (has_forward(plan.problem)) plan.config = to_text(config);
  if (has_backward(plan.problem)) plan.backward_config = to_text(config);
}

}  // namespace dfa
