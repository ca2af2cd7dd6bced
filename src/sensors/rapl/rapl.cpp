#include "sensors/rapl/rapl.h"

#include <fmt/format.h>

#include <mutex>
#include <string>
#include <utility>

#include "sensors/rapl/counter.h"
#include "sensors/text_value.h"

namespace dfa::sensors {
namespace {

constexpr double kRaplPeriod = 1e-3;  // the hardware refreshes the counters about every millisecond

// The kernel's counters are whole numbers that are not negative.
NumberFile read_microjoules(const std::filesystem::path& path) {
  NumberFile file = read_number(path);
  if (!file.value || (*file.value >= 0 && *file.value < 0x1p64)) return file;
  return {std::nullopt, Verdict::no(fmt::format("'{}' holds '{}', not a number of microjoules",
                                                path.string(), *file.value))};
}

class RaplMeter final : public Meter {
 public:
  RaplMeter(std::string name, const std::filesystem::path& zone, const Clock& clock)
      : name_(std::move(name)),
        file_(zone / "energy_uj"),
        clock_(clock),
        counter_(read_microjoules(zone / "max_energy_range_uj").value.value_or(0)) {}

  std::string name() const override { return name_; }
  Quantity quantity() const override { return Quantity::energy_j; }
  double period_s() const override { return kRaplPeriod; }
  double longest_gap_s() const override { return counter_.longest_gap_s(); }
  Verdict status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  std::string break_reason() const override {
    const std::lock_guard lock(mutex_);
    return counter_.break_reason();
  }

  // A read that fails loses nothing: the counter counts on.
  std::optional<Reading> read() override {
    const std::lock_guard lock(mutex_);
    NumberFile file = read_microjoules(file_);
    const double time_s = clock_.now_s();
    status_ = file.value ? counter_.add(*file.value, time_s) : std::move(file.status);
    if (!status_) return std::nullopt;
    return Reading{time_s, counter_.joules(), counter_.breaks()};
  }

 private:
  std::string name_;
  std::filesystem::path file_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // an energy window reads between its marks, on another thread
  TurningCounter counter_;
  Verdict status_;
};

// "rapl:package-0" for the zone intel-rapl:0, "rapl:package-0:dram" for intel-rapl:0:1 inside it;
// empty for domains that are part of a package (core, uncore) or overlap it (psys).
std::string meter_name(const std::filesystem::path& zone) {
  const std::string domain = read_text(zone / "name");
  if (domain.starts_with("package")) return "rapl:" + domain;
  if (domain != "dram") return {};
  const std::string file = zone.filename().string();
  const std::string parent = file.substr(0, file.rfind(':'));
  return "rapl:" + read_text(zone.parent_path() / parent / "name") + ":dram";
}

}  // namespace

MeterSet open_rapl(const std::filesystem::path& sysfs_root, const Clock& clock) {
  MeterSet set;
  const std::filesystem::path folder = sysfs_root / "class" / "powercap";
  std::string trouble;
  for (const auto& zone : entries(folder, "intel-rapl:")) {
    if (const std::filesystem::path file = zone / "name"; read_text(file).empty()) {
      trouble = "'" + file.string() + "' does not tell what the zone counts";
    }
    const std::string name = meter_name(zone);
    if (name.empty()) continue;
    auto meter = std::make_unique<RaplMeter>(name, zone, clock);
    if (meter->read()) {
      set.meters.push_back(std::move(meter));
    } else {
      trouble = meter->status().reason;
    }
  }
  if (!trouble.empty()) {
    // A package whose counter cannot be read would make the sum a lie: better none at all.
    set.meters.clear();
    const bool denied = trouble.find("ermission denied") != std::string::npos;
    set.status = Verdict::no("RAPL: " + trouble +
                             (denied ? "; the counters are readable by root, or after "
                                       "'chmod a+r' on energy_uj"
                                     : ""));
  } else if (set.empty()) {
    set.status = Verdict::no("RAPL: no energy counter under '" + folder.string() +
                             "' (virtual machine, container or unsupported processor)");
  }
  return set;
}

}  // namespace dfa::sensors
