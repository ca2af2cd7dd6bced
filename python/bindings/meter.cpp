#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "attention/registry.h"
#include "measure/telemetry.h"
#include "python/bindings/core.h"
#include "sensors/energy_window.h"
#include "sensors/system_clock.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

const Backend& backend_of(const std::string& device) {
  if (device != "cpu" && device != "cuda" && device != "auto") {
    throw InvalidArgument("device '" + device + "'; accepted: auto, cpu, cuda");
  }
  const Backend& cuda = find_backend("cuda");
  if (device == "cpu") return find_backend("cpu");
  const Verdict there = cuda.available();
  if (device == "auto" && !there) return find_backend("cpu");
  if (!there) throw Unsupported("device cuda: " + there.reason);
  return cuda;
}

// The energy counters of a device, between two marks.
class Counters {
 public:
  explicit Counters(const std::string& device)
      : backend_(backend_of(device)),
        telemetry_(measure::open_telemetry(backend_.device().identity(), clock_)),
        window_(telemetry_.energy.all()) {}
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  std::string device() const { return backend_.name(); }
  std::optional<double> period_s() const {
    if (telemetry_.energy.empty()) return std::nullopt;
    return telemetry_.energy.meters[0]->period_s();
  }

  void begin() {
    if (!telemetry_.energy.empty()) window_.begin();
    begin_s_ = clock_.now_s();
  }

  sensors::Energy end() {
    if (!telemetry_.energy.empty()) return window_.end();
    sensors::Energy none;
    none.seconds = clock_.now_s() - begin_s_;
    none.reason = telemetry_.energy.status.reason;
    return none;
  }

 private:
  sensors::SystemClock clock_;
  const Backend& backend_;
  measure::Telemetry telemetry_;
  sensors::EnergyWindow window_;
  double begin_s_ = 0;
};

}  // namespace

void bind_meter(nb::module_& core) {
  nb::class_<sensors::Energy>(core, "Energy")
      .def_ro("energy_j", &sensors::Energy::energy_j)
      .def_ro("uncertainty_j", &sensors::Energy::uncertainty_j)
      .def_ro("power_w", &sensors::Energy::power_w)
      .def_ro("seconds", &sensors::Energy::seconds)
      .def_ro("reason", &sensors::Energy::reason);
  nb::class_<Counters>(core, "Counters")
      .def(nb::init<const std::string&>(), "device"_a)
      .def_prop_ro("device", &Counters::device)
      .def_prop_ro("period_s", &Counters::period_s)
      .def("begin", &Counters::begin, nb::call_guard<nb::gil_scoped_release>())
      .def("end", &Counters::end, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace dfa::python
