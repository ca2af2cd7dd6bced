#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "python/bindings/core.h"
#include "sensors/gpu/registry.h"
#include "sensors/system_clock.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

// One sensor of a card by its name, such as nvml:nvlink_sent: a number a reading, or why there is
// none.
class CardSensor {
 public:
  CardSensor(const std::string& card, const std::string& sensor) {
    const auto found = sensors::find_card(card);
    set_.status = found.status;
    if (!found.value) return;
    std::string known;
    for (const sensors::GaugeInfo& info : (*found.value)->gauges()) {
      if (info.name == sensor) {
        set_ = (*found.value)->open(info.gauge, clock_);
        return;
      }
      known += (known.empty() ? "" : ", ") + std::string(info.name);
    }
    throw InvalidArgument("sensor '" + sensor + "'; accepted: " + known);
  }
  CardSensor(const CardSensor&) = delete;
  CardSensor& operator=(const CardSensor&) = delete;

  std::pair<std::optional<double>, std::string> read() {
    if (set_.empty()) return {std::nullopt, set_.status.reason};
    Meter& meter = *set_.meters.front();
    const auto reading = meter.read();
    if (!reading) return {std::nullopt, meter.status().reason};
    return {reading->value, ""};
  }

 private:
  sensors::SystemClock clock_;
  sensors::MeterSet set_;
};

}  // namespace

void bind_card_sensor(nb::module_& core) {
  nb::class_<CardSensor>(core, "CardSensor")
      .def(nb::init<const std::string&, const std::string&>(), "card"_a, "sensor"_a)
      .def("read", &CardSensor::read, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace dfa::python
