#include "sensors/host_meters.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "sensors/text_value.h"

namespace dfa::sensors {
namespace {

// A meter whose value is a number computed from files at every read.
class FileMeter final : public Meter {
 public:
  using Source = std::function<NumberFile()>;

  FileMeter(std::string name, Quantity quantity, double period_s, Source source, const Clock& clock)
      : name_(std::move(name)),
        quantity_(quantity),
        period_s_(period_s),
        source_(std::move(source)),
        clock_(clock) {}

  std::string name() const override { return name_; }
  Quantity quantity() const override { return quantity_; }
  double period_s() const override { return period_s_; }
  Verdict status() const override { return status_; }

  std::optional<Reading> read() override {
    NumberFile file = source_();
    status_ = std::move(file.status);
    if (!file.value) return std::nullopt;
    return Reading{clock_.now_s(), *file.value};
  }

 private:
  std::string name_;
  Quantity quantity_;
  double period_s_;
  Source source_;
  const Clock& clock_;
  Verdict status_;
};

NumberFile scaled(NumberFile file, double factor) {
  if (file.value) *file.value *= factor;
  return file;
}

NumberFile mean_of(const std::vector<std::filesystem::path>& files, double factor) {
  double sum = 0;
  for (const auto& path : files) {
    NumberFile file = read_number(path);
    if (!file.value) return file;
    sum += *file.value;
  }
  return {sum / static_cast<double>(files.size()) * factor, Verdict::yes()};
}

NumberFile cpuinfo_clock(const std::filesystem::path& cpuinfo) {
  std::istringstream lines(read_text(cpuinfo));
  double sum = 0;
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    sum += std::strtod(line.c_str() + line.find(':') + 1, nullptr);
    ++count;
  }
  if (count == 0) {
    return {std::nullopt, Verdict::no("'" + cpuinfo.string() + "' tells no 'cpu MHz'")};
  }
  return {sum / count * 1e6, Verdict::yes()};
}

bool is_cpu_sensor(const std::string& name) {
  constexpr const char* kNames[] = {"coretemp",    "k10temp",      "zenpower",
                                    "cpu_thermal", "x86_pkg_temp", "cpu-thermal"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// The file with the temperature in thousandths of a degree, or nothing.
std::filesystem::path temperature_file(const std::filesystem::path& sys) {
  for (const auto& sensor : entries(sys / "class" / "hwmon", "hwmon")) {
    if (is_cpu_sensor(read_text(sensor / "name"))) return sensor / "temp1_input";
  }
  for (const auto& zone : entries(sys / "class" / "thermal", "thermal_zone")) {
    if (is_cpu_sensor(read_text(zone / "type"))) return zone / "temp";
  }
  return {};
}

MeterSet with_first_read(std::unique_ptr<Meter> meter) {
  MeterSet set;
  if (meter->read()) {
    set.meters.push_back(std::move(meter));
  } else {
    set.status = meter->status();
  }
  return set;
}

}  // namespace

MeterSet open_cpu_temperature(const HostRoots& roots, const Clock& clock) {
  const std::filesystem::path file = temperature_file(roots.sys);
  if (file.empty()) {
    return {{},
            Verdict::no("no processor temperature sensor under '" + roots.sys.string() +
                        "/class/hwmon' or '…/thermal'")};
  }
  return with_first_read(std::make_unique<FileMeter>(
      "cpu:temperature", Quantity::temp_c, 0.1, [file] { return scaled(read_number(file), 1e-3); },
      clock));
}

MeterSet open_cpu_clock(const HostRoots& roots, const Clock& clock) {
  std::vector<std::filesystem::path> files;
  for (const auto& cpu : entries(roots.sys / "devices" / "system" / "cpu", "cpu")) {
    const std::filesystem::path file = cpu / "cpufreq" / "scaling_cur_freq";
    if (std::filesystem::exists(file)) files.push_back(file);
  }
  if (!files.empty()) {
    return with_first_read(std::make_unique<FileMeter>(
        "cpu:clock", Quantity::clock_hz, 0.01, [files] { return mean_of(files, 1e3); }, clock));
  }
  if (read_host_facts(roots).virtual_machine) {
    return {{},
            Verdict::no("no cpufreq here, and a virtual machine's 'cpu MHz' is nominal, not "
                        "measured")};
  }
  const std::filesystem::path cpuinfo = roots.proc / "cpuinfo";
  return with_first_read(std::make_unique<FileMeter>(
      "cpu:clock", Quantity::clock_hz, 0.01, [cpuinfo] { return cpuinfo_clock(cpuinfo); }, clock));
}

}  // namespace dfa::sensors
