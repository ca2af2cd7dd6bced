#pragma once

#include <optional>
#include <string>
#include <vector>

#include "monitor/sum.h"

namespace dfa::monitor {

inline constexpr const char* kRecordSchema = "dfa-monitor/1";

// What all cards said at one moment.
struct Look {
  double time_s = 0;  // since the first
  std::vector<CardNow> cards;
  Sum sum;
  std::optional<BudgetState> budget;
};

// JSON lines: first who and when, then an object a look. What is not told is null, and its reason
// stands under `missing`.
std::string json_head(const std::string& hostname, const std::string& created);
std::string to_json_line(const Look& look);

// The names of the columns; then a line a card and one of the sum of `power_cards` and
// `energy_cards` of the `cards`. What is not told is empty.
std::string csv_head();
std::string to_csv_lines(const Look& look);

}  // namespace dfa::monitor
