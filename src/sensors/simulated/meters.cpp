#include "sensors/simulated/meters.h"

#include <memory>
#include <string>

namespace dfa::simulated {
namespace {

struct GaugeInfo {
  const char* name;
  Quantity quantity;
  std::optional<Reading> (Gpu::*read)() const;
};

GaugeInfo info_of(Gauge gauge) {
  switch (gauge) {
    case Gauge::energy: return {"simulated:energy", Quantity::energy_j, &Gpu::energy_counter};
    case Gauge::power: return {"simulated:power", Quantity::power_w, &Gpu::instant_power};
    case Gauge::power_average:
      return {"simulated:power_average", Quantity::power_w, &Gpu::average_power};
    case Gauge::temperature: return {"simulated:temperature", Quantity::temp_c, &Gpu::temperature};
    case Gauge::sm_clock: return {"simulated:sm_clock", Quantity::clock_hz, &Gpu::sm_clock};
    case Gauge::power_capped: break;
  }
  return {"simulated:power_capped", Quantity::duration_s, &Gpu::capped_time};
}

class SimulatedMeter final : public Meter {
 public:
  SimulatedMeter(const Gpu& gpu, GaugeInfo info) : gpu_(gpu), info_(info) {}

  std::string name() const override { return info_.name; }
  Quantity quantity() const override { return info_.quantity; }
  double period_s() const override { return Gpu::kSensorPeriod; }
  Verdict status() const override { return status_; }
  std::optional<Reading> read() override {
    const std::optional<Reading> reading = (gpu_.*info_.read)();
    status_ = reading ? Verdict::yes() : Verdict::no("the scenario says: no reading");
    return reading;
  }

 private:
  const Gpu& gpu_;
  GaugeInfo info_;
  Verdict status_;
};

}  // namespace

sensors::MeterSet open_meter(const Gpu& gpu, Gauge gauge) {
  sensors::MeterSet set;
  set.meters.push_back(std::make_unique<SimulatedMeter>(gpu, info_of(gauge)));
  return set;
}

}  // namespace dfa::simulated
