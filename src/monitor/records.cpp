#include "monitor/records.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string_view>

#include "base/json.h"
#include "monitor/columns.h"

namespace dfa::monitor {
namespace {

// The fields that are added up.
constexpr const char* kPower = "power_average_w";
constexpr const char* kEnergy = "energy_j";

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json text(const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); }

Json of_card(const CardNow& card) {
  Json json = {{"card", name_of(card)},
               {"index", card.facts.index ? Json(*card.facts.index) : Json(nullptr)},
               {"uuid", text(card.facts.uuid)},
               {"pci_id", text(card.facts.pci_id)},
               {"name", text(card.facts.name)},
               {"lost", text(card.status.reason)}};
  for (const Column& column : columns()) json[column.field] = number(column.value(card));
  Json missing = Json::object();
  for (const auto& [gauge, why] : card.missing) missing[sensor_of(card, gauge)] = why;
  json["missing"] = std::move(missing);
  Json breaks = Json::object();
  for (const auto& [gauge, growth] : card.growth) {
    if (growth.breaks == 0) continue;
    breaks[sensor_of(card, gauge)] = {{"count", growth.breaks}, {"reason", growth.break_reason}};
  }
  json["breaks"] = std::move(breaks);
  return json;
}

void add(Json& json, const char* field, const char* name, const Total& total) {
  json[field] = number(total.sum);
  json[fmt::format("{}_cards", name)] = total.said;
  json[fmt::format("{}_missing", name)] = text(total.missing);
}

Json of_sum(const Sum& sum) {
  Json json = {{"cards", sum.cards}};
  add(json, kPower, "power", sum.power);
  add(json, kEnergy, "energy", sum.energy);
  json["energy_breaks"] = sum.breaks;
  return json;
}

Json of_budget(const BudgetState& state) {
  return {{"budget_w", state.budget_w},   {"standing", name_of(state.standing)},
          {"over_w", state.over_w},       {"above_s", state.above_s},
          {"unknown_s", state.unknown_s}, {"watched_s", state.watched_s},
          {"most_w", state.most_w}};
}

std::string of_state(const Look& look, double BudgetState::*value) {
  return look.budget ? fmt::format("{}", *look.budget.*value) : "";
}

// Of the sum's line alone.
struct SumColumn {
  const char* name;
  std::string (*text)(const Look&);
};
constexpr SumColumn kSumColumns[] = {
    {"cards", [](const Look& look) { return fmt::format("{}", look.sum.cards); }},
    {"power_cards", [](const Look& look) { return fmt::format("{}", look.sum.power.said); }},
    {"energy_cards", [](const Look& look) { return fmt::format("{}", look.sum.energy.said); }},
    {"energy_breaks", [](const Look& look) { return fmt::format("{}", look.sum.breaks); }},
    {"budget_w", [](const Look& look) { return of_state(look, &BudgetState::budget_w); }},
    {"standing",
     [](const Look& look) {
       return std::string(look.budget ? name_of(look.budget->standing) : "");
     }},
    {"above_s", [](const Look& look) { return of_state(look, &BudgetState::above_s); }},
    {"unknown_s", [](const Look& look) { return of_state(look, &BudgetState::unknown_s); }},
};

std::string quoted(const std::string& value) {
  if (value.find_first_of(",\"\n\r") == std::string::npos) return value;
  std::string out = "\"";
  for (const char c : value) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string cell(const std::optional<double>& value) {
  return value ? fmt::format(",{}", *value) : ",";
}

std::string sum_line(const Look& look) {
  const Sum& sum = look.sum;
  std::string line = fmt::format("{:.3f},sum,", look.time_s);
  for (const Column& column : columns()) {
    const std::string_view field = column.field;
    line += cell(field == kPower    ? sum.power.sum
                 : field == kEnergy ? sum.energy.sum
                                    : std::nullopt);
  }
  for (const SumColumn& column : kSumColumns) line += "," + column.text(look);
  return line + "\n";
}

}  // namespace

std::string json_head(const std::string& hostname, const std::string& created) {
  const Json json = {{"schema", kRecordSchema}, {"created", created}, {"hostname", hostname}};
  return json.dump() + "\n";
}

std::string to_json_line(const Look& look) {
  Json json = {{"time_s", std::round(1e3 * look.time_s) / 1e3}, {"cards", Json::array()}};
  for (const CardNow& card : look.cards) json["cards"].push_back(of_card(card));
  json["sum"] = of_sum(look.sum);
  json["budget"] = look.budget ? of_budget(*look.budget) : Json(nullptr);
  // A card's name may be no UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_head() {
  std::string line = "time_s,card,lost";
  for (const Column& column : columns()) line += fmt::format(",{}", column.field);
  for (const SumColumn& column : kSumColumns) line += fmt::format(",{}", column.name);
  return line + "\n";
}

std::string to_csv_lines(const Look& look) {
  std::string lines;
  for (const CardNow& card : look.cards) {
    lines +=
        fmt::format("{:.3f},{},{}", look.time_s, quoted(name_of(card)), quoted(card.status.reason));
    for (const Column& column : columns()) lines += cell(column.value(card));
    lines += std::string(std::size(kSumColumns), ',') + "\n";
  }
  return lines + sum_line(look);
}

}  // namespace dfa::monitor
