#include "sensors/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "base/enum_table.h"
#include "base/file.h"

namespace dfa::sensors {
namespace {

constexpr auto kQuantities = enum_table<Quantity>({{Quantity::energy_j, "energy_j"},
                                                   {Quantity::power_w, "power_w"},
                                                   {Quantity::temp_c, "temp_c"},
                                                   {Quantity::clock_hz, "clock_hz"},
                                                   {Quantity::utilization_pct, "utilization_pct"},
                                                   {Quantity::memory_bytes, "memory_bytes"},
                                                   {Quantity::transfer_bytes, "transfer_bytes"},
                                                   {Quantity::duration_s, "duration_s"},
                                                   {Quantity::event_bits, "event_bits"}});

class ReplayMeter final : public Meter {
 public:
  ReplayMeter(TraceColumn column, const Clock& clock)
      : column_(std::move(column)), clock_(clock), start_s_(clock.now_s()) {}

  std::string name() const override { return column_.meter; }
  Quantity quantity() const override { return column_.quantity; }
  Verdict status() const override { return status_; }

  // The typical distance of two readings.
  double period_s() const override {
    const auto& readings = column_.readings;
    if (readings.size() < 2) return 0;
    return (readings.back().time_s - readings.front().time_s) /
           static_cast<double>(readings.size() - 1);
  }

  std::optional<Reading> read() override {
    const auto& readings = column_.readings;
    const double time = clock_.now_s() - start_s_;
    const auto next = std::upper_bound(readings.begin(), readings.end(), time,
                                       [](double t, const Reading& r) { return t < r.time_s; });
    if (next == readings.begin()) {
      status_ = Verdict::no(column_.meter + ": the trace has no value yet");
      return std::nullopt;
    }
    if (next == readings.end() && time > readings.back().time_s + period_s()) {
      status_ = Verdict::no(
          fmt::format("{}: the trace ended at {} s", column_.meter, readings.back().time_s));
      return std::nullopt;
    }
    status_ = Verdict::yes();
    const Reading& reading = *std::prev(next);
    return Reading{start_s_ + reading.time_s, reading.value};
  }

 private:
  TraceColumn column_;
  const Clock& clock_;
  double start_s_;
  Verdict status_;
};

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  if (!line.empty() && line.back() == ',') cells.emplace_back();
  return cells;
}

TraceColumn parse_header(const std::string& cell) {
  const std::size_t dot = cell.rfind('.');
  if (dot != std::string::npos && dot > 0) {
    if (const auto quantity = kQuantities.find(std::string_view(cell).substr(dot + 1))) {
      return {cell.substr(0, dot), *quantity, {}};
    }
  }
  throw InvalidArgument("trace: column '" + cell +
                        "' is not <meter>.<quantity> with a quantity of " + kQuantities.names());
}

double parse_cell(const std::string& cell, std::size_t line) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc{} || end != cell.data() + cell.size() || !std::isfinite(value)) {
    throw InvalidArgument(fmt::format("trace line {}: '{}' is not a finite number", line, cell));
  }
  return value;
}

void parse_row(const std::string& text, std::size_t line, std::vector<TraceColumn>& columns,
               double& last_time) {
  const std::vector<std::string> cells = split(text);
  if (cells.size() != columns.size() + 1) {
    throw InvalidArgument(fmt::format("trace line {}: {} cells, the header has {}", line,
                                      cells.size(), columns.size() + 1));
  }
  const double time = parse_cell(cells[0], line);
  if (time < last_time) {
    throw InvalidArgument(
        fmt::format("trace line {}: time {} s is before {} s", line, time, last_time));
  }
  last_time = time;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (cells[i + 1].empty()) continue;
    columns[i].readings.push_back({time, parse_cell(cells[i + 1], line)});
  }
}

}  // namespace

const char* name_of(Quantity quantity) { return kQuantities.name(quantity); }

std::vector<TraceColumn> parse_trace(const std::string& csv) {
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> header = split(line);
  if (header.size() < 2 || header[0] != "time_s") {
    throw InvalidArgument("trace: the first line is not 'time_s,<meter>.<quantity>,…'");
  }
  std::vector<TraceColumn> columns;
  for (std::size_t i = 1; i < header.size(); ++i) columns.push_back(parse_header(header[i]));
  double last_time = -INFINITY;
  for (std::size_t number = 2; std::getline(lines, line); ++number) {
    if (!line.empty()) parse_row(line, number, columns, last_time);
  }
  return columns;
}

std::vector<TraceColumn> read_trace(const std::filesystem::path& path) {
  return parse_trace(read_file(path));
}

std::string to_csv(const std::vector<TraceColumn>& columns) {
  std::string csv = "time_s";
  std::map<double, std::vector<std::string>> rows;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    csv += fmt::format(",{}.{}", columns[i].meter, name_of(columns[i].quantity));
    for (const Reading& reading : columns[i].readings) {
      auto& row = rows[reading.time_s];
      row.resize(columns.size());
      row[i] = fmt::format("{}", reading.value);
    }
  }
  csv += '\n';
  for (const auto& [time, cells] : rows) {
    csv += fmt::format("{}", time);
    for (const std::string& cell : cells) csv += "," + cell;
    csv += '\n';
  }
  return csv;
}

MeterSet open_replay(const std::vector<TraceColumn>& columns, const Clock& clock) {
  MeterSet set;
  for (const TraceColumn& column : columns) {
    set.meters.push_back(std::make_unique<ReplayMeter>(column, clock));
  }
  if (set.empty()) set.status = Verdict::no("the trace has no columns");
  return set;
}

}  // namespace dfa::sensors
