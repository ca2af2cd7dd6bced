#include "sensors/rapl/rapl.h"

#include <string>
#include <utility>

#include "sensors/text_value.h"

namespace dfa::sensors {
namespace {

constexpr double kRaplPeriod = 1e-3;  // the hardware refreshes the counters about every millisecond

class RaplMeter final : public Meter {
 public:
  RaplMeter(std::string name, std::filesystem::path zone, const Clock& clock)
      : name_(std::move(name)), counter_(zone / "energy_uj"), clock_(clock) {
    range_uj_ = read_number(zone / "max_energy_range_uj").value.value_or(0);
    first_uj_ = last_uj_ = raw().value_or(0);
  }

  std::string name() const override { return name_; }
  Quantity quantity() const override { return Quantity::energy_j; }
  double period_s() const override { return kRaplPeriod; }
  Verdict status() const override { return status_; }

  std::optional<Reading> read() override {
    const std::optional<double> now_uj = raw();
    if (!now_uj) return std::nullopt;
    if (*now_uj < last_uj_) {
      if (range_uj_ <= 0) {
        status_ = Verdict::no(name_ + " wrapped around and tells no max_energy_range_uj");
        return std::nullopt;
      }
      turns_uj_ += range_uj_;
    }
    last_uj_ = *now_uj;
    return Reading{clock_.now_s(), (turns_uj_ + last_uj_ - first_uj_) * 1e-6};
  }

 private:
  std::optional<double> raw() {
    NumberFile file = read_number(counter_);
    status_ = std::move(file.status);
    return file.value;
  }

  std::string name_;
  std::filesystem::path counter_;
  const Clock& clock_;
  double range_uj_ = 0;
  double first_uj_ = 0;
  double last_uj_ = 0;
  double turns_uj_ = 0;
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
    set.status = Verdict::no("RAPL: " + trouble +
                             "; the counters are readable by root, or after "
                             "'chmod a+r' on energy_uj");
  } else if (set.empty()) {
    set.status = Verdict::no("RAPL: no energy counter under '" + folder.string() +
                             "' (virtual machine, container or unsupported processor)");
  }
  return set;
}

}  // namespace dfa::sensors
