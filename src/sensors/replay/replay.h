#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "contract/clock.h"
#include "sensors/meter_set.h"

// Recorded sensor traces, played back on an injected clock.
//
// A trace is a CSV file: a header `time_s,<meter>.<quantity>,…`, e.g.
//   time_s,rapl:package-0.energy_j,cpu:temperature.temp_c
// then one row an instant, times not decreasing, empty cells where a meter gave nothing.
namespace dfa::sensors {

struct TraceColumn {
  std::string meter;
  Quantity quantity = Quantity::power_w;
  std::vector<Reading> readings;
};

// "energy_j", "power_w", …: the quantity with its unit.
const char* name_of(Quantity quantity);

// Throws InvalidArgument naming line and cell, IoError when the file cannot be read.
std::vector<TraceColumn> parse_trace(const std::string& csv);
std::vector<TraceColumn> read_trace(const std::filesystem::path& path);
std::string to_csv(const std::vector<TraceColumn>& columns);

// One meter a column. Trace time 0 is the clock's time at this call. A meter shows the last value
// at or before now; before its first and one period after its last value it has none.
MeterSet open_replay(const std::vector<TraceColumn>& columns, const Clock& clock);

}  // namespace dfa::sensors
