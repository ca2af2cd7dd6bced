#include "profile/json.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_text.h"
#include "dfa/error.h"
#include "dfa/problem.h"
#include "profile/check.h"
#include "spec/dtype_name.h"

namespace dfa::profile {
namespace {

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::optional<double> maybe(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

DType dtype_of(const std::string& text) {
  if (const std::optional<DType> type = dtype_named(text)) return *type;
  throw InvalidArgument("dtype '" + text + "'; accepted: " + dtype_names());
}

constexpr const char* kSchema = "dfa-profile/1";
constexpr const char* kSchemaWithClocks = "dfa-profile/2";

Json to_json(const Row& row) {
  const OperatingPoint& p = row.point;
  return {{"card", row.machine.card},
          {"driver", row.machine.driver},
          {"kernels", row.machine.kernels},
          {"problem", row.problem},
          {"backend", row.backend},
          {"config", p.label},
          {"dtype", dfa::name_of(p.dtype)},
          {"time_s", p.time_s},
          {"power_w", number(p.power_w)},
          {"energy_j", number(p.energy_j)},
          {"dynamic_w", number(p.dynamic_w)},
          {"clock_share", p.clock_share},
          {"error", p.error},
          {"stores_probabilities", p.stores_probabilities},
          {"memory_bytes", p.memory_bytes},
          {"spread", row.spread},
          {"temp_c", number(row.temp_c)},
          {"date", row.date}};
}

// Throws InvalidArgument where an object has a key that is none of these.
void require_known(const Json& json, const std::vector<std::string>& keys, const char* place = "") {
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    throw InvalidArgument(
        fmt::format("{}unknown key '{}'; accepted: {}", place, key, fmt::join(keys, ", ")));
  }
}

std::vector<std::string> keys_of_rows() {
  std::vector<std::string> keys;
  const Json row = to_json(Row{});
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  keys.push_back("clock_hz");
  return keys;
}

std::int64_t whole(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_number_integer()) throw InvalidArgument(std::string(key) + " must be whole");
  return value;
}

Row from_json(const Json& json) {
  static const std::vector<std::string> keys = keys_of_rows();
  if (json.is_object()) require_known(json, keys);
  Row row;
  row.machine = {json.at("card"), json.at("driver"), json.at("kernels")};
  row.problem = json.at("problem");
  row.backend = json.at("backend");
  row.point.label = json.at("config");
  row.point.dtype = dtype_of(json.at("dtype"));
  row.point.time_s = json.at("time_s");
  row.point.power_w = maybe(json, "power_w");
  row.point.energy_j = maybe(json, "energy_j");
  row.point.dynamic_w = maybe(json, "dynamic_w");
  row.point.clock_share = json.at("clock_share");
  row.point.error = json.at("error");
  row.point.stores_probabilities = json.at("stores_probabilities");
  row.point.memory_bytes = whole(json, "memory_bytes");
  row.spread = json.at("spread");
  row.temp_c = maybe(json, "temp_c");
  row.date = json.at("date");
  if (json.contains("clock_hz")) row.point.clock_hz = maybe(json, "clock_hz");
  if (const Verdict ok = check(row); !ok) throw InvalidArgument(ok.reason);
  row.problem = to_line(parse_problem(row.problem));  // rows are found by it
  return row;
}

}  // namespace

std::string to_json(const std::vector<Row>& rows) {
  const bool clocks = std::ranges::any_of(rows, [](const Row& r) { return !!r.point.clock_hz; });
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back(to_json(row));
    if (clocks) list.back()["clock_hz"] = number(row.point.clock_hz);
  }
  return Json{{"schema", clocks ? kSchemaWithClocks : kSchema}, {"rows", list}}.dump(1) + "\n";
}

static Json parse(const std::string& text) {
  try {
    return parse_json(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("profile: no file of dfa-profile/1 or 2: ") + error.what());
  }
}

std::vector<Row> from_json(const std::string& text) {
  std::vector<Row> rows;
  try {
    const Json json = parse(text);
    const Json schema = json.is_object() ? json.value("schema", Json()) : Json();
    if (schema != Json(kSchema) && schema != Json(kSchemaWithClocks)) {
      throw InvalidArgument("profile: schema must be dfa-profile/1 or dfa-profile/2");
    }
    require_known(json, {"schema", "rows"}, "profile: ");
    for (const Json& row : json.at("rows")) {
      try {
        rows.push_back(from_json(row));
      } catch (const std::exception& error) {
        throw InvalidArgument(fmt::format("profile: row {}: {}", rows.size() + 1, error.what()));
      }
    }
  } catch (const Json::exception& error) {
    throw InvalidArgument(std::string("profile: no file of dfa-profile/1 or 2: ") + error.what());
  }
  return rows;
}

}  // namespace dfa::profile
