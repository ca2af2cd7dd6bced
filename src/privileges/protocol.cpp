#include "privileges/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/json_text.h"

namespace dfa::privileges {
namespace {

struct Form {
  Op op;
  const char* name;
  std::string_view keys;      // that it takes, each between spaces
  std::string_view required;  // likewise
};

constexpr Form kForms[] = {
    {Op::hello, "hello", " op version ", " version "},
    {Op::lease, "lease", " op card seconds ", " card "},
    {Op::set, "set", " op card limit_w clock_mhz ", " card "},
    {Op::restore, "restore", " op card ", " card "},
    {Op::status, "status", " op ", ""},
};

const Form& form_of(Op op) {
  return *std::find_if(std::begin(kForms), std::end(kForms),
                       [op](const Form& form) { return form.op == op; });
}

const Form& form_named(const Json& json) {
  std::string names;
  const auto op = json.find("op");
  for (const Form& form : kForms) {
    if (op != json.end() && *op == form.name) return form;
    names += (names.empty() ? "" : ", ") + std::string(form.name);
  }
  throw InvalidArgument(
      fmt::format("{}; accepted: {}", op == json.end() ? "no \"op\"" : "op " + op->dump(), names));
}

void check_keys(const Json& json, const Form& form) {
  for (const auto& [key, value] : json.items()) {
    if (key.find(' ') == std::string::npos && !key.empty() &&
        form.keys.find(" " + key + " ") != std::string_view::npos) {
      continue;
    }
    throw InvalidArgument(fmt::format("{} of \"{}\"; accepted:{}", quoted(key), form.name,
                                      form.keys.substr(0, form.keys.size() - 1)));
  }
  for (const char* key : {"version", "card"}) {
    if (form.required.find(fmt::format(" {} ", key)) == std::string_view::npos) continue;
    if (!json.contains(key)) throw InvalidArgument(fmt::format("\"{}\" needs {}", form.name, key));
  }
}

double number(const Json& json, const char* key) {
  if (json.is_number() && std::isfinite(json.get<double>()) && json.get<double>() > 0) {
    return json.get<double>();
  }
  throw InvalidArgument(fmt::format("{} {}; accepted: a number above 0", key, json.dump()));
}

Range clocks(const Json& json) {
  if (json.is_array() && json.size() == 2) {
    const Range hz{1e6 * number(json[0], "clock_mhz"), 1e6 * number(json[1], "clock_mhz")};
    if (hz.least <= hz.most) return hz;
  }
  throw InvalidArgument(fmt::format("clock_mhz {}; accepted: [least,most], null", json.dump()));
}

}  // namespace

Request parse_request(std::string_view line) {
  const Json json = parse_json(line);
  if (!json.is_object()) throw InvalidArgument("no JSON object; accepted: {\"op\":…} a line");
  const Form& form = form_named(json);
  check_keys(json, form);
  Request request{.op = form.op};
  for (const auto& [key, value] : json.items()) {
    if (key == "version") {
      if (!value.is_number_integer())
        throw InvalidArgument("version " + value.dump() + "; accepted: 1");
      request.version = value == kVersion ? kVersion : 0;
    }
    if (key == "card") {
      if (!value.is_string())
        throw InvalidArgument("card " + value.dump() + "; accepted: a string");
      request.card = value.get<std::string>();
    }
    if (key == "seconds") request.seconds = number(value, "seconds");
    if (key == "limit_w") request.frees_limit = value.is_null();
    if (key == "limit_w" && !value.is_null()) request.limit_w = number(value, "limit_w");
    if (key == "clock_mhz") request.unlocks_clock = value.is_null();
    if (key == "clock_mhz" && !value.is_null()) request.clock_hz = clocks(value);
  }
  if (form.op == Op::set && json.contains("limit_w") == json.contains("clock_mhz")) {
    throw InvalidArgument("\"set\" takes limit_w or clock_mhz, one of them");
  }
  return request;
}

Json to_json(const Request& request) {
  Json json{{"op", form_of(request.op).name}};
  if (request.op == Op::hello) json["version"] = request.version;
  if (!request.card.empty()) json["card"] = request.card;
  if (request.seconds) json["seconds"] = *request.seconds;
  if (request.limit_w) json["limit_w"] = *request.limit_w;
  if (request.clock_hz) {
    json["clock_mhz"] = {1e-6 * request.clock_hz->least, 1e-6 * request.clock_hz->most};
  }
  if (request.frees_limit) json["limit_w"] = nullptr;
  if (request.unlocks_clock) json["clock_mhz"] = nullptr;
  return json;
}

Json refusal(const std::string& reason) { return {{"ok", false}, {"error", reason}}; }

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

bool LineBuffer::has_line() const { return text_.find('\n') < most_; }

std::optional<std::string> LineBuffer::next() {
  const std::size_t end = text_.find('\n');
  if (end >= most_) return std::nullopt;
  std::string line = text_.substr(0, end);
  text_.erase(0, end + 1);
  return line;
}

bool LineBuffer::overflows() const { return text_.size() >= most_ && text_.find('\n') >= most_; }

}  // namespace dfa::privileges
