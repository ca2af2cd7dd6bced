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

double time_of(const OperatingPoint& point) { return point.time_s; }
double energy_of(const OperatingPoint& point) { return *point.energy_j; }
double energy_time_of(const OperatingPoint& point) { return *point.energy_j * point.time_s; }

struct Form {
  Goal goal;
  const char* name;
  std::string_view example;  // empty: without a value
  std::initializer_list<Unit> units;
  double least, most;     // of the value
  std::string_view unit;  // that it is shown in, of factor 1
  bool needs_joules;
  double (*cost_of)(const OperatingPoint&);
};

const Form kForms[] = {
    {Goal::max_performance, "max_performance", "", {}, 0, 0, "", false, &time_of},
    {Goal::min_energy, "min_energy", "", {}, 0, 0, "", true, &energy_of},
    {Goal::edp, "edp", "", {}, 0, 0, "", true, &energy_time_of},
    {Goal::power_cap,
     "power_cap",
     "power_cap:500W",
     {{"kW", 1e3}, {"W", 1}},
     1,
     1e5,
     "W",
     false,
     &time_of},
    {Goal::temp_cap, "temp_cap", "temp_cap:70C", {{"C", 1}}, 1, 150, "C", false, &time_of},
    {Goal::latency,
     "latency",
     "latency:2ms",
     {{"ms", 1e-3}, {"us", 1e-6}, {"s", 1}},
     1e-7,
     1e5,
     "s",
     false,
     &time_of},
    {Goal::limit, "limit", "limit:450W", {{"kW", 1e3}, {"W", 1}}, 1, 1e5, "W", false, &time_of},
    {Goal::clock,
     "clock",
     "clock:1200MHz",
     {{"GHz", 1e3}, {"MHz", 1}},
     1,
     1e5,
     "MHz",
     false,
     &time_of},
};

const Form& form_of(const Policy& policy) {
  for (const Form& form : kForms) {
    if (form.goal == policy.goal) return form;
  }
  return kForms[0];
}

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
                               form.unit));
    }
    return number;
  }
  refuse(text, fmt::format("'{}' is not a number with its unit", value));
}

}  // namespace

const char* Policy::name() const { return form_of(*this).name; }
bool Policy::needs_joules() const { return form_of(*this).needs_joules; }
double Policy::cost_of(const OperatingPoint& point) const { return form_of(*this).cost_of(point); }

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
  const Form& form = form_of(policy);
  return form.example.empty() ? form.name
                              : fmt::format("{}:{}{}", form.name, policy.value, form.unit);
}

}  // namespace dfa::power
