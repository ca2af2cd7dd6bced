#include "simulate/scenario.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/json_text.h"
#include "base/quantity.h"
#include "dfa/error.h"

namespace dfa::simulate {
namespace {

// Reads an object's keys one by one; a key that nobody asked for is an error.
class Reader {
 public:
  Reader(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) throw InvalidArgument(place_ + ": must be an object");
  }

  template <typename T>
  void take(const char* key, T& value) {
    accepted_ += accepted_.empty() ? key : std::string(", ") + key;
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    ++taken_;
    read(key, *found, value);
  }

  template <typename T>
  void take(const char* key, std::optional<T>& value) {
    T plain{};
    const bool there = json_.contains(key);
    take(key, plain);
    if (there) value = plain;
  }

  // former: what older files call it.
  const Json* child(const char* key, const char* former = nullptr) {
    accepted_ += accepted_.empty() ? key : std::string(", ") + key;
    auto found = json_.find(key);
    if (found == json_.end() && former != nullptr) found = json_.find(former);
    if (found == json_.end()) return nullptr;
    ++taken_;
    return &*found;
  }

  // Throws where the object has a key that was not taken.
  void finish() const {
    if (taken_ == json_.size()) return;
    for (const auto& [key, value] : json_.items()) {
      if ((", " + accepted_ + ",").find(", " + key + ",") != std::string::npos) continue;
      throw InvalidArgument(
          fmt::format("{}: unknown key '{}'; accepted: {}", place_, key, accepted_));
    }
  }

 private:
  void read(const char* key, const Json& json, double& value) {
    if (!json.is_number()) wrong(key, "a number");
    value = json.get<double>();
  }
  void read(const char* key, const Json& json, int& value) {
    const bool fits = json.is_number_integer() && json == Json(json.get<int>());
    if (!fits) wrong(key, "a whole number");
    value = json.get<int>();
  }
  void read(const char* key, const Json& json, std::uint64_t& value) {
    if (!json.is_number_unsigned()) wrong(key, "a whole number from 0");
    value = json.get<std::uint64_t>();
  }
  void read(const char* key, const Json& json, bool& value) {
    if (!json.is_boolean()) wrong(key, "true or false");
    value = json.get<bool>();
  }
  void read(const char* key, const Json& json, std::string& value) {
    if (!json.is_string()) wrong(key, "text");
    value = json.get<std::string>();
  }
  void read(const char* key, const Json& json, std::vector<double>& values) {
    if (!json.is_array()) wrong(key, "a list of numbers");
    for (const Json& one : json) read(key, one, values.emplace_back());
  }
  void read(const char* key, const Json& json, power::Policy& value) {
    std::string text;
    read(key, json, text);
    value = power::parse_policy(text);
  }
  void read(const char* key, const Json& json, DType& value) {
    std::string text;
    read(key, json, text);
    for (const DType type : kDTypes) {
      if (text == dfa::name_of(type)) {
        value = type;
        return;
      }
    }
    wrong(key, "fp32, tf32, fp16, bf16 or e4m3");
  }
  [[noreturn]] void wrong(const char* key, const char* accepted) const {
    throw InvalidArgument(fmt::format("{}: '{}' must be {}", place_, key, accepted));
  }

  const Json& json_;
  std::string place_;
  std::string accepted_;
  std::size_t taken_ = 0;
};

void read_card(const Json& json, simulated::CardParameters& card) {
  Reader reader(json, "card");
  reader.take("name", card.name);
  reader.take("sm_count", card.sm_count);
  reader.take("idle_w", card.idle_w);
  reader.take("limit_w", card.limit_w);
  reader.take("inlet_c", card.inlet_c);
  reader.take("leakage_w_per_c", card.leakage_w_per_c);
  reader.take("slowdown_temp_c", card.slowdown_temp_c);
  reader.take("instant_noise", card.instant_noise);
  reader.finish();
}

void read_levers(const Json& json, Levers& levers) {
  Reader reader(json, "levers");
  reader.take("sm_count", levers.sm_count);
  reader.take("sm_least", levers.sm_least);
  reader.take("sm_step", levers.sm_step);
  reader.take("pacing", levers.pacing);
  reader.take("duty_least", levers.duty_least);
  reader.take("limit_least_w", levers.limit_least_w);
  reader.take("limit_most_w", levers.limit_most_w);
  reader.take("clock_least_hz", levers.clock_least_hz);
  reader.take("clock_most_hz", levers.clock_most_hz);
  reader.finish();
}

TruePoint read_point(const Json& json, const std::string& place) {
  TruePoint point;
  Reader reader(json, place);
  reader.take("label", point.label);
  reader.take("dtype", point.dtype);
  reader.take("dynamic_w", point.dynamic_w);
  reader.take("work_per_s", point.work_per_s);
  reader.take("error", point.error);
  reader.finish();
  if (!(point.dynamic_w > 0) || !(point.work_per_s > 0) || !(point.error >= 0)) {
    throw InvalidArgument(place + ": dynamic_w and work_per_s must be above 0, error not below");
  }
  return point;
}

// Of a rack, whose coordinator alone hears of them.
Event read_rack_event(const Json& json, const std::string& place) {
  Event event;
  Reader reader(json, place);
  reader.take("at_s", event.at_s);
  reader.take("note", event.note);
  reader.take("budget_w", event.budget_w);
  reader.take("coordinator", event.coordinator);
  reader.finish();
  return event;
}

Event read_event(const Json& json, const std::string& place) {
  Event event;
  Reader reader(json, place);
  reader.take("at_s", event.at_s);
  reader.take("note", event.note);
  reader.take("policy", event.policy);
  reader.take("load_factor", event.load_factor);
  reader.take("error_factor", event.error_factor);
  reader.take("busy", event.busy);
  reader.take("foreign_w", event.foreign_w);
  reader.take("foreign_seen", event.foreign_seen);
  reader.take("inlet_c", event.inlet_c);
  reader.take("outage", event.outage);
  reader.take("stuck", event.stuck);
  reader.take("counter_reset", event.counter_reset);
  reader.take("lent", event.lent);
  reader.finish();
  if (event.error_factor && !(*event.error_factor > 0)) {
    throw InvalidArgument(place + ": error_factor must be above 0");
  }
  return event;
}

RackParameters read_rack(const Json& json) {
  RackParameters rack;
  Reader reader(json, "rack");
  reader.take("cards", rack.cards);
  reader.take("budget_w", rack.budget_w);
  reader.take("spread", rack.spread);
  reader.take("loss", rack.loss);
  reader.finish();
  if (rack.cards < 1 || rack.cards > 1000 || !(rack.budget_w > 0) || rack.loss < 0 ||
      rack.loss >= 1 || rack.spread < 0 || rack.spread >= 1) {
    throw InvalidArgument(
        "rack: cards must be from 1 to 1000, budget_w above 0, spread and loss from 0 to below 1");
  }
  return rack;
}

void read_bounds(const Json& json, MetricBounds& bounds) {
  Reader reader(json, "metrics");
  reader.take("violation_pct", bounds.violation_pct);
  reader.take("overshoot_pct", bounds.overshoot_pct);
  reader.take("settling_s", bounds.settling_s);
  reader.take("work_vs_pacing", bounds.work_vs_pacing);
  reader.take("temp_over_c", bounds.temp_over_c);
  reader.take("switches_per_minute", bounds.switches_per_minute);
  reader.take("power_deviation_w", bounds.power_deviation_w);
  reader.take("status", bounds.status);
  reader.take("infeasible_pct", bounds.infeasible_pct);
  reader.take("inexact_s", bounds.inexact_s);
  reader.take("imbalance_pct", bounds.imbalance_pct);
  reader.take("work_vs_equal", bounds.work_vs_equal);
  reader.finish();
}

template <typename T, typename Read>
void read_list(const Json* json, const char* name, std::vector<T>& values, const Read& read) {
  if (json == nullptr) return;
  if (!json->is_array()) throw InvalidArgument(std::string(name) + " must be a list");
  for (std::size_t i = 0; i < json->size(); ++i) {
    values.push_back(read((*json)[i], fmt::format("{}[{}]", name, i)));
  }
}

void validate(const simulated::CardParameters& card) {
  if (card.sm_count >= 1 && card.idle_w >= 0 && card.limit_w > 0 && card.leakage_w_per_c >= 0 &&
      card.instant_noise >= 0 && card.instant_noise < 1) {
    return;
  }
  throw InvalidArgument(
      "card: sm_count must be 1 or more, limit_w above 0, idle_w and leakage_w_per_c not below, "
      "instant_noise from 0 to below 1");
}

// Both ends are 0 where nothing is lent.
void validate_lent(const char* name, double least, double most, const Range& accepted) {
  const bool lent = least != 0 || most != 0;
  if (!lent || (least <= most && accepted.holds(least) && accepted.holds(most))) return;
  throw InvalidArgument(
      fmt::format("levers: {} from {:g} to {:g}; accepted: none, or a range from "
                  "{:g} to {:g}, the least first",
                  name, least, most, accepted.least, accepted.most));
}

void validate(const Levers& levers, const simulated::CardParameters& card) {
  constexpr double kLeastW = 1, kMostW = 1e5;
  validate_lent("limit_least_w and limit_most_w", levers.limit_least_w, levers.limit_most_w,
                {kLeastW, kMostW});
  validate_lent("clock_least_hz and clock_most_hz", levers.clock_least_hz, levers.clock_most_hz,
                {card.clock_min_hz, card.clock_max_hz});
  if (!(levers.duty_least > 0 && levers.duty_least <= 1)) {
    throw InvalidArgument("levers: duty_least must be above 0 and at most 1");
  }
  if (levers.sm_count == 0) return;  // launches always use all
  if (levers.sm_count < 0 || levers.sm_count > card.sm_count || levers.sm_least < 1 ||
      levers.sm_least > levers.sm_count || levers.sm_step < 1) {
    throw InvalidArgument(fmt::format(
        "levers: sm_count must be from 0 to the card's {}, sm_least from 1 to sm_count, sm_step 1 "
        "or more",
        card.sm_count));
  }
}

void validate(const Scenario& scenario) {
  if (!(scenario.seconds > 0 && scenario.seconds <= 1e5)) {
    throw InvalidArgument("scenario: seconds must be above 0 and at most 100000");
  }
  validate(scenario.card);
  validate(scenario.levers, scenario.card);
  if (!(scenario.profile_error > -1)) {
    throw InvalidArgument("scenario: profile_error must be above -1");
  }
  if (scenario.points.empty()) throw InvalidArgument("scenario: points must not be empty");
  if (scenario.max_error && !(*scenario.max_error > 0)) {
    throw InvalidArgument("scenario: max_error must be above 0");
  }
  if (scenario.bounds.inexact_s && !scenario.max_error) {
    throw InvalidArgument("metrics: inexact_s of a scenario without max_error");
  }
  for (const double hz : scenario.clocks_hz) {
    if (hz >= scenario.card.clock_min_hz && hz <= scenario.card.clock_max_hz) continue;
    throw InvalidArgument(fmt::format("scenario: clocks_hz {:g}; the card has {:g} to {:g}", hz,
                                      scenario.card.clock_min_hz, scenario.card.clock_max_hz));
  }
  if (!scenario.clocks_hz.empty() && scenario.rack) {
    throw InvalidArgument("scenario: a rack has no use for clocks_hz");
  }
  if (scenario.max_error && scenario.rack) {
    throw InvalidArgument("scenario: a rack has no use for max_error");
  }
  double before = 0;
  for (const Event& event : scenario.events) {
    if (!(event.at_s >= before)) throw InvalidArgument("scenario: events must be in order of at_s");
    before = event.at_s;
  }
  if (!scenario.bounds.work_vs_pacing) return;
  const auto is_clock = [](const Event& event) { return event.policy && event.policy->clock_hz(); };
  if (scenario.policy.clock_hz() ||
      std::any_of(scenario.events.begin(), scenario.events.end(), is_clock)) {
    throw InvalidArgument("metrics: work_vs_pacing of a policy clock, which gaps cannot follow");
  }
}

}  // namespace

Scenario parse_scenario(const std::string& text) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("scenario: ") + error.what());
  }
  Scenario scenario;
  Reader reader(json, "scenario");
  std::string schema;
  reader.take("schema", schema);
  if (schema != "dfa-scenario/1") {
    throw InvalidArgument("scenario: schema is '" + schema + "'; accepted: dfa-scenario/1");
  }
  reader.take("name", scenario.name);
  reader.take("about", scenario.about);
  reader.take("seconds", scenario.seconds);
  reader.take("seed", scenario.seed);
  reader.take("policy", scenario.policy);
  reader.take("profile_error", scenario.profile_error);
  reader.take("clocks_hz", scenario.clocks_hz);
  reader.take("max_error", scenario.max_error);
  reader.take("power_sensor", scenario.power_sensor);
  if (const Json* card = reader.child("card")) read_card(*card, scenario.card);
  if (const Json* levers = reader.child("levers")) read_levers(*levers, scenario.levers);
  if (const Json* rack = reader.child("rack")) scenario.rack = read_rack(*rack);
  read_list(reader.child("points"), "points", scenario.points, read_point);
  read_list(reader.child("events"), "events", scenario.events,
            scenario.rack ? read_rack_event : read_event);
  if (const Json* bounds = reader.child("metrics", "marks")) read_bounds(*bounds, scenario.bounds);
  reader.finish();
  validate(scenario);
  return scenario;
}

Scenario read_scenario(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMostText);
  try {
    return parse_scenario(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("'" + path.string() + "': " + error.what());
  }
}

}  // namespace dfa::simulate
