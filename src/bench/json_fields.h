#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/json.h"
#include "dfa/error.h"

// JSON of plain structs from one list of fields each, so that what is written and what is read
// cannot disagree. A struct T takes part with
//   template <typename Visitor, FieldsOf<T> Fields> void visit_fields(Visitor& visit, Fields& t)
// that calls visit("key", t.member) for fields every file has, and visit.extra("key", t.member) for
// fields that may be absent (then the member keeps its default). An enumeration takes part with
// table_of(value), its EnumTable.
namespace dfa::bench {

template <typename T>
struct is_optional : std::false_type {};
template <typename T>
struct is_optional<std::optional<T>> : std::true_type {};
template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};
using TextMap = std::map<std::string, std::string>;

template <typename Fields, typename T>
concept FieldsOf = std::is_same_v<std::remove_const_t<Fields>, T>;

class JsonWriter {
 public:
  template <typename T>
  void operator()(const char* key, const T& value) {
    json_[key] = encode(value);
  }
  template <typename T>
  void extra(const char* key, const T& value) {
    (*this)(key, value);
  }

  template <typename T>
  static Json encode(const T& value) {
    if constexpr (is_optional<T>::value) {
      return value ? encode(*value) : Json(nullptr);
    } else if constexpr (is_vector<T>::value) {
      Json list = Json::array();
      for (const auto& item : value) list.push_back(encode(item));
      return list;
    } else if constexpr (std::is_floating_point_v<T>) {
      return std::isfinite(value) ? Json(value) : Json(nullptr);
    } else if constexpr (std::is_enum_v<T>) {
      return Json(table_of(value).name(value));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return Json(value);
    } else if constexpr (std::is_same_v<T, TextMap>) {
      Json object = Json::object();
      for (const auto& [key, text] : value) object[key] = text;
      return object;
    } else {
      JsonWriter writer;
      visit_fields(writer, value);
      return std::move(writer.json_);
    }
  }

 private:
  Json json_ = Json::object();
};

class JsonReader {
 public:
  JsonReader(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) fail(place_, "an object", json);
  }

  template <typename T>
  void operator()(const char* key, T& value) {
    const auto found = json_.find(key);
    if (found == json_.end()) throw InvalidArgument(at(key) + ": missing");
    decode(*found, at(key), value);
  }
  template <typename T>
  void extra(const char* key, T& value) {
    if (json_.contains(key)) (*this)(key, value);
  }

  template <typename T>
  static void decode(const Json& json, const std::string& place, T& value) {
    if constexpr (is_optional<T>::value) {
      if (json.is_null()) {
        value.reset();
      } else {
        decode(json, place, value.emplace());
      }
    } else if constexpr (is_vector<T>::value) {
      if (!json.is_array()) fail(place, "an array", json);
      value.clear();
      for (const Json& item : json) {
        const std::string at = place + "[" + std::to_string(value.size()) + "]";
        decode(item, at, value.emplace_back());
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) fail(place, "true or false", json);
      value = json.get<bool>();
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!json.is_number()) fail(place, "a number", json);
      value = json.get<T>();
    } else if constexpr (std::is_integral_v<T>) {
      if (!json.is_number_integer()) fail(place, "an integer", json);
      if (std::is_unsigned_v<T> && !json.is_number_unsigned()) fail(place, "0 or more", json);
      value = json.get<T>();
    } else if constexpr (std::is_enum_v<T>) {
      const auto& table = table_of(value);
      const auto found = json.is_string() ? table.find(json.get<std::string>()) : std::nullopt;
      if (!found) fail(place, "one of " + table.names(), json);
      value = *found;
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) fail(place, "text", json);
      value = json.get<std::string>();
    } else if constexpr (std::is_same_v<T, TextMap>) {
      if (!json.is_object()) fail(place, "an object", json);
      value.clear();
      for (const auto& [key, item] : json.items()) decode(item, place + "." + key, value[key]);
    } else {
      JsonReader reader(json, place);
      visit_fields(reader, value);
    }
  }

  [[noreturn]] static void fail(const std::string& place, const std::string& expected,
                                const Json& found) {
    throw InvalidArgument(place + ": expected " + expected + ", found " +
                          found.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40));
  }

 private:
  std::string at(const char* key) const { return place_.empty() ? key : place_ + "." + key; }

  const Json& json_;
  std::string place_;
};

}  // namespace dfa::bench
