#include "power/trace.h"

#include <cmath>

#include "base/json.h"

namespace dfa::power {
namespace {

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

std::string to_json_line(const Decision& decision, const Setup& setup) {
  const Action& action = decision.action;
  Json json;
  json["kind"] = "decision";
  json["time_s"] = decision.time_s;
  json["status"] = name_of(decision.status);
  json["point"] = setup.points[action.point].label;
  json["dtype"] = name_of(setup.points[action.point].dtype);
  json["sms"] = action.sms == 0 ? Json() : Json(action.sms);
  json["duty"] = action.duty;
  if (action.limit_w > 0) json["limit_w"] = action.limit_w;
  if (action.clock_hz > 0) json["clock_hz"] = action.clock_hz;
  json["level"] = decision.level;
  json["bias"] = decision.bias;
  json["target_w"] = number(decision.target_w);
  json["predicted_w"] = number(decision.predicted_w);
  json["power_w"] = number(decision.power_w);
  json["temp_c"] = number(decision.temp_c);
  json["error"] =
      number(decision.error && std::isfinite(*decision.error) ? decision.error : std::nullopt);
  json["foreign_w"] = number(decision.foreign_w);
  json["reachable"] = number(decision.reachable);
  json["why"] = decision.why;
  return json.dump();
}

}  // namespace dfa::power
