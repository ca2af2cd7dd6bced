#include "power/policy.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "dfa/error.h"

namespace dfa::power {
namespace {

struct Unit {
  std::string_view text;
  double factor;
};

struct Form {
  Goal goal;
  std::string_view name;
  std::string_view example;  // empty: without a value
  std::initializer_list<Unit> units;
  double least, most;  // of the value
};

const Form kForms[] = {
    {Goal::max_performance, "max_performance", "", {}, 0, 0},
    {Goal::min_energy, "min_energy", "", {}, 0, 0},
    {Goal::edp, "edp", "", {}, 0, 0},
    {Goal::power_cap, "power_cap", "power_cap:500W", {{"kW", 1e3}, {"W", 1}}, 1, 1e5},
    {Goal::temp_cap, "temp_cap", "temp_cap:70C", {{"C", 1}}, 1, 150},
    {Goal::latency, "latency", "latency:2ms", {{"ms", 1e-3}, {"us", 1e-6}, {"s", 1}}, 1e-7, 1e5},
};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  std::string accepted;
  for (const Form& form : kForms) {
    accepted += accepted.empty() ? "" : ", ";
    accepted += form.example.empty() ? form.name : form.example;
  }
  throw InvalidArgument(fmt::format("policy '{}': {}; accepted: {}", text, why, accepted));
}

double parse_value(const std::string& text, std::string_view value, const Form& form) {
  for (const Unit& unit : form.units) {
    if (!value.ends_with(unit.text)) continue;
    const std::string_view digits = value.substr(0, value.size() - unit.text.size());
    double number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc{} || end != digits.data() + digits.size()) continue;
    number *= unit.factor;
    if (!(number >= form.least && number <= form.most)) {
      refuse(text, fmt::format("{} must be from {} to {} {}", form.name, form.least, form.most,
                               form.goal == Goal::latency ? "s" : form.units.end()[-1].text));
    }
    return number;
  }
  refuse(text, fmt::format("'{}' is not a number with its unit", value));
}

}  // namespace

Policy parse_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string_view whole = text;
  const std::string_view name = whole.substr(0, colon);
  for (const Form& form : kForms) {
    if (name != form.name) continue;
    if (form.example.empty()) {
      if (colon != std::string::npos) refuse(text, fmt::format("{} takes no value", name));
      return {form.goal, 0};
    }
    if (colon == std::string::npos) refuse(text, fmt::format("{} needs a value", name));
    return {form.goal, parse_value(text, whole.substr(colon + 1), form)};
  }
  refuse(text, "unknown");
}

std::string to_text(const Policy& policy) {
  for (const Form& form : kForms) {
    if (form.goal != policy.goal) continue;
    if (form.example.empty()) return std::string(form.name);
    const char* unit = policy.goal == Goal::power_cap  ? "W"
                       : policy.goal == Goal::temp_cap ? "C"
                                                       : "s";
    return fmt::format("{}:{}{}", form.name, policy.value, unit);
  }
  return "";
}

}  // namespace dfa::power
