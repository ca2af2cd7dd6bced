#include "sensors/nvml/meters.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "sensors/nvml/energy_meter.h"
#include "sensors/nvml/gpm.h"

namespace dfa::nvml {
namespace {

using Source = std::function<Value<double>()>;

// Power and energy of an H200 change this often; of NVLink it is assumed, not read on a card.
constexpr double kTick = 0.1;

constexpr GaugeInfo kGauges[] = {
    {Gauge::energy, "nvml:energy", Quantity::energy_j, kTick},
    {Gauge::power, "nvml:power", Quantity::power_w, kTick},
    {Gauge::power_average, "nvml:power_average", Quantity::power_w, kTick},
    {Gauge::temperature, "nvml:temperature", Quantity::temp_c, kTick},
    {Gauge::memory_temperature, "nvml:memory_temperature", Quantity::temp_c, kTick},
    {Gauge::sm_clock, "nvml:sm_clock", Quantity::clock_hz, kTick},
    {Gauge::memory_clock, "nvml:memory_clock", Quantity::clock_hz, kTick},
    {Gauge::utilization, "nvml:utilization", Quantity::utilization_pct, kTick},
    {Gauge::memory_utilization, "nvml:memory_utilization", Quantity::utilization_pct, kTick},
    {Gauge::memory_used, "nvml:memory_used", Quantity::memory_bytes, kTick},
    {Gauge::clock_events, "nvml:clock_events", Quantity::event_bits, kTick},
    {Gauge::power_capped, "nvml:power_capped", Quantity::duration_s, kTick},
    {Gauge::too_hot, "nvml:too_hot", Quantity::duration_s, kTick},
    {Gauge::hardware_too_hot, "nvml:hardware_too_hot", Quantity::duration_s, kTick},
    {Gauge::power_brake, "nvml:power_brake", Quantity::duration_s, kTick},
    {Gauge::sm_active, "nvml:sm_active", Quantity::utilization_pct, Gpm::kPeriod},
    {Gauge::tensor_active, "nvml:tensor_active", Quantity::utilization_pct, Gpm::kPeriod},
    {Gauge::dram_active, "nvml:dram_active", Quantity::utilization_pct, Gpm::kPeriod},
    {Gauge::nvlink_sent, "nvml:nvlink_sent", Quantity::transfer_bytes, kTick},
    {Gauge::nvlink_received, "nvml:nvlink_received", Quantity::transfer_bytes, kTick},
};

// Numbers of NVML's fields.
constexpr std::uint32_t kMemoryTemperature = 82;
constexpr std::uint32_t kPowerCapNs = 74;
constexpr std::uint32_t kThermalNs = 75;
constexpr std::uint32_t kNvlinkSentKib = 138;
constexpr std::uint32_t kNvlinkReceivedKib = 139;
constexpr std::uint32_t kAllLinks = ~std::uint32_t{0};  // a scope: the sum of them
constexpr std::uint32_t kPowerAverage = 185;
constexpr std::uint32_t kPowerInstant = 186;
constexpr std::uint32_t kHardwareThermalNs = 270;
constexpr std::uint32_t kPowerBrakeNs = 271;

constexpr int kDie = 0;
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;

Source field(const Device& device, std::uint32_t id, double unit, std::uint32_t scope = 0) {
  return [device, id, unit, scope] {
    Value<double> read = device.field(id, scope);
    if (read.value) *read.value *= unit;
    return read;
  };
}

// A number that no working card shows is not one: drivers answer 0 for what they do not measure.
Source above_zero(Source source, const char* unit) {
  return [source = std::move(source), unit]() -> Value<double> {
    Value<double> read = source();
    if (!read.value || *read.value > 0) return read;
    return {std::nullopt, Verdict::no(fmt::format("the driver says {} {}, which is no measurement",
                                                  *read.value, unit))};
  };
}

// A function of the library that fills one whole number.
template <typename Number, typename Call>
Source number(Call call, double unit) {
  return [call = std::move(call), unit]() -> Value<double> {
    Number got = 0;
    const Verdict status = call(&got);
    if (!status) return {std::nullopt, status};
    return {static_cast<double>(got) * unit, {}};
  };
}

Source clock_of(const Device& device, int which) {
  return above_zero(number<unsigned>(
                        [device, which](unsigned* mhz) {
                          return device.api().clock(device.handle(), which, mhz);
                        },
                        1e6),
                    "Hz");
}

Source utilization_of(const Device& device, std::uint32_t Utilization::*part) {
  return [device, part]() -> Value<double> {
    Utilization got{};
    const Verdict status = device.api().utilization(device.handle(), &got);
    if (!status) return {std::nullopt, status};
    return {static_cast<double>(got.*part), {}};
  };
}

Source memory_used(const Device& device) {
  return [device]() -> Value<double> {
    Memory got{};
    const Verdict status = device.api().memory(device.handle(), &got);
    if (!status) return {std::nullopt, status};
    return {static_cast<double>(got.used), {}};
  };
}

Source clock_events(const Device& device) {
  return number<unsigned long long>(
      [device](unsigned long long* bits) {
        const Api& api = device.api();
        const auto& ask =
            api.clock_events.address != nullptr ? api.clock_events : api.throttle_reasons;
        return ask(device.handle(), bits);
      },
      1);
}

// Field 185, or on drivers without it the older call.
Source power_average(const Device& device) {
  Source by_field = field(device, kPowerAverage, 1e-3);
  if (by_field().value) return above_zero(by_field, "W");
  return above_zero(number<unsigned>(
                        [device](unsigned* milliwatts) {
                          return device.api().power_usage(device.handle(), milliwatts);
                        },
                        1e-3),
                    "W");
}

// Cards without links may answer 0, which would say that nothing was sent.
Source nvlink(const Device& device, std::uint32_t id) {
  const Verdict there = device.has_nvlink();
  if (there) return field(device, id, 1024, kAllLinks);
  return [there] { return Value<double>{std::nullopt, there}; };
}

Source source_of(const Device& device, Gauge gauge) {
  switch (gauge) {
    case Gauge::power: return above_zero(field(device, kPowerInstant, 1e-3), "W");
    case Gauge::power_average: return power_average(device);
    case Gauge::temperature:
      return above_zero(number<unsigned>(
                            [device](unsigned* celsius) {
                              return device.api().temperature(device.handle(), kDie, celsius);
                            },
                            1),
                        "C");
    case Gauge::memory_temperature: return above_zero(field(device, kMemoryTemperature, 1), "C");
    case Gauge::sm_clock: return clock_of(device, kSmClock);
    case Gauge::memory_clock: return clock_of(device, kMemoryClock);
    case Gauge::utilization: return utilization_of(device, &Utilization::gpu);
    case Gauge::memory_utilization: return utilization_of(device, &Utilization::memory);
    case Gauge::memory_used: return memory_used(device);
    case Gauge::clock_events: return clock_events(device);
    case Gauge::power_capped: return field(device, kPowerCapNs, 1e-9);
    case Gauge::too_hot: return field(device, kThermalNs, 1e-9);
    case Gauge::hardware_too_hot: return field(device, kHardwareThermalNs, 1e-9);
    case Gauge::power_brake: return field(device, kPowerBrakeNs, 1e-9);
    case Gauge::nvlink_sent: return nvlink(device, kNvlinkSentKib);
    case Gauge::nvlink_received: return nvlink(device, kNvlinkReceivedKib);
    case Gauge::energy:  // make_energy_meter
    case Gauge::sm_active:
    case Gauge::tensor_active:
    case Gauge::dram_active: break;  // open_activity
  }
  return [] { return Value<double>{std::nullopt, Verdict::no("no such gauge")}; };
}

class GaugeMeter final : public Meter {
 public:
  GaugeMeter(const GaugeInfo& info, Source source, const Clock& clock)
      : info_(info), source_(std::move(source)), clock_(clock) {}

  std::string name() const override { return info_.name; }
  Quantity quantity() const override { return info_.quantity; }
  double period_s() const override { return info_.period_s; }
  Verdict status() const override { return status_; }

  std::optional<Reading> read() override {
    const double before = clock_.now_s();
    Value<double> got = source_();
    const double after = clock_.now_s();
    status_ = std::move(got.status);
    if (!got.value) return std::nullopt;
    return Reading{(before + after) / 2, *got.value};
  }

 private:
  const GaugeInfo& info_;
  Source source_;
  const Clock& clock_;
  Verdict status_;
};

bool shared_under_mig(Quantity quantity) {
  return quantity == Quantity::energy_j || quantity == Quantity::power_w ||
         quantity == Quantity::utilization_pct;
}

std::uint32_t gpm_metric_of(Gauge gauge) {
  switch (gauge) {
    case Gauge::sm_active: return Gpm::kSmActive;
    case Gauge::tensor_active: return Gpm::kTensorActive;
    case Gauge::dram_active: return Gpm::kDramActive;
    default: return 0;
  }
}

// The first value comes a tenth of a second later, so that there is none to try.
sensors::MeterSet open_activity(const Device& device, const GaugeInfo& info, const Clock& clock) {
  auto gpm = std::make_shared<Gpm>(device, gpm_metric_of(info.gauge), clock);
  sensors::MeterSet set;
  set.status = gpm->start();
  if (!set.status) return set;
  set.meters.push_back(std::make_unique<GaugeMeter>(
      info, [gpm] { return gpm->read(); }, clock));
  return set;
}

}  // namespace

std::span<const GaugeInfo> gauges() { return kGauges; }

const GaugeInfo& info_of(Gauge gauge) { return kGauges[static_cast<std::size_t>(gauge)]; }

sensors::MeterSet open_meter(const Device& device, Gauge gauge, const Clock& clock) {
  const GaugeInfo& info = info_of(gauge);
  if (device.settings().mig && shared_under_mig(info.quantity)) {
    return {{},
            Verdict::no("the card is in MIG mode: NVML measures all its instances together and has "
                        "no power, energy or utilization of one")};
  }
  if (is_activity(gauge)) return open_activity(device, info, clock);
  std::unique_ptr<Meter> meter =
      gauge == Gauge::energy ? make_energy_meter(device, clock)
                             : std::make_unique<GaugeMeter>(info, source_of(device, gauge), clock);
  sensors::MeterSet set;
  if (meter->read()) {
    set.meters.push_back(std::move(meter));
  } else {
    set.status = meter->status();
  }
  return set;
}

}  // namespace dfa::nvml
