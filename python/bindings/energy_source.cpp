#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "bench/machine.h"
#include "measure/telemetry.h"
#include "python/bindings/core.h"
#include "sensors/energy_window.h"
#include "sensors/gpu/registry.h"
#include "sensors/replay/replay.h"
#include "sensors/system_clock.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

// What a reading of all meters of a source gave: joules of counters, or watts where there are none.
struct SourceReading {
  std::optional<double> value;
  double time_s = 0;  // of the call
  int breaks = 0;     // readings of other numbers must not be subtracted
  std::string reason;
};

// The energy of one device while a program runs: its counters, or its watts where it has none. May
// be read from several threads; a thread of a window reads counters in time that would turn over.
class EnergySource {
 public:
  explicit EnergySource(const std::string& device) : window_({}) {
    if (device.starts_with("replay:")) {
      open_trace(device.substr(7));
    } else {
      open_device(device);
    }
    if (!energy_.empty()) {
      window_ = sensors::EnergyWindow(energy_.all());
      window_.begin();
    }
  }
  EnergySource(const EnergySource&) = delete;
  EnergySource& operator=(const EnergySource&) = delete;

  // Of counters, of samples of power, or empty.
  std::string kind() const {
    return !energy_.empty() ? "counter" : !power_.empty() ? "sampled" : "";
  }
  std::string method() const { return method_; }
  std::string device() const { return device_; }
  std::string reason() const {
    if (!kind().empty()) return {};
    return energy_.status.reason.empty() ? "no energy counter" : energy_.status.reason;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Meter* meter : meters()) names.push_back(meter->name());
    return names;
  }
  std::optional<double> period_s() const {
    if (kind().empty()) return std::nullopt;
    double longest = 0;
    for (const Meter* meter : meters()) longest = std::max(longest, meter->period_s());
    return longest;
  }
  std::optional<std::string> card() const { return card_; }
  std::optional<std::string> driver() const { return driver_; }
  std::optional<double> power_limit_w() const { return power_limit_w_; }

  SourceReading read() {
    const std::lock_guard lock(mutex_);
    SourceReading all{.value = std::nullopt, .time_s = 0, .breaks = 0, .reason = reason()};
    double sum = 0;
    for (Meter* meter : meters()) {
      const std::optional<Reading> reading = meter->read();
      if (!reading) {
        all.reason = meter->name() + ": " + meter->status().reason;
      } else {
        sum += reading->value;
        all.breaks += reading->breaks;
      }
    }
    if (all.reason.empty()) all.value = sum;
    all.time_s = clock_.now_s();
    return all;
  }

 private:
  std::vector<Meter*> meters() const { return !energy_.empty() ? energy_.all() : power_.all(); }

  void open_trace(const std::string& path) {
    std::vector<sensors::TraceColumn> joules;
    std::vector<sensors::TraceColumn> watts;
    for (sensors::TraceColumn& column : sensors::read_trace(path)) {
      if (column.readings.empty()) continue;
      if (column.quantity == Quantity::energy_j) joules.push_back(std::move(column));
      if (column.quantity == Quantity::power_w) watts.push_back(std::move(column));
    }
    energy_ = sensors::open_replay(joules, clock_);
    power_ = sensors::open_replay(watts, clock_);
    if (kind().empty())
      throw InvalidArgument("trace " + path + ": no column of energy_j or power_w");
    device_ = method_ = "replay";
  }

  void open_device(const std::string& device) {
    GpuIdentity gpu;
    const bool named = device != "auto" && device != "cpu" && device != "cuda";
    if (named) {
      gpu.pci_id = device;
    } else if (device != "cpu") {
      const Backend& cuda = find_backend("cuda");
      const Verdict there = cuda.available();
      if (device == "cuda" && !there) throw Unsupported("device cuda: " + there.reason);
      if (there) gpu = cuda.device().identity();
    }
    const bool on_gpu = !gpu.pci_id.empty();
    device_ = on_gpu ? "cuda" : "cpu";
    if (on_gpu) describe_card(gpu, named);
    if (!on_gpu) card_ = bench::describe_machine(1).cpu;
    measure::Telemetry telemetry = measure::open_telemetry(gpu, clock_);
    energy_ = std::move(telemetry.energy);
    power_ = std::move(telemetry.power);
    if (!meters().empty()) {
      const std::string name = meters().front()->name();  // "nvml:energy"
      method_ = name.substr(0, name.find(':'));
    }
  }

  void describe_card(const GpuIdentity& gpu, bool named) {
    const auto card = sensors::find_card(gpu.pci_id);
    if (!card.value) {
      if (named) {
        throw Unsupported("device '" + gpu.pci_id + "': " + card.status.reason +
                          "; accepted: auto, cpu, cuda, a PCI bus id, a UUID, replay:FILE");
      }
      if (!gpu.name.empty()) card_ = gpu.name;
      return;
    }
    card_ = (*card.value)->facts().name;
    driver_ = (*card.value)->facts().driver;
    power_limit_w_ = (*card.value)->settings().power_limit_w;
  }

  sensors::SystemClock clock_;
  std::string device_;
  std::string method_;
  std::optional<std::string> card_;
  std::optional<std::string> driver_;
  std::optional<double> power_limit_w_;
  sensors::MeterSet energy_;
  sensors::MeterSet power_;
  sensors::EnergyWindow window_;
  std::mutex mutex_;
};

}  // namespace

void bind_energy_source(nb::module_& core) {
  nb::class_<SourceReading>(core, "SourceReading")
      .def_ro("value", &SourceReading::value)
      .def_ro("time_s", &SourceReading::time_s)
      .def_ro("breaks", &SourceReading::breaks)
      .def_ro("reason", &SourceReading::reason);
  nb::class_<EnergySource>(core, "EnergySource")
      .def(nb::init<const std::string&>(), "device"_a)
      .def_prop_ro("kind", &EnergySource::kind)
      .def_prop_ro("method", &EnergySource::method)
      .def_prop_ro("device", &EnergySource::device)
      .def_prop_ro("reason", &EnergySource::reason)
      .def_prop_ro("names", &EnergySource::names)
      .def_prop_ro("period_s", &EnergySource::period_s)
      .def_prop_ro("card", &EnergySource::card)
      .def_prop_ro("driver", &EnergySource::driver)
      .def_prop_ro("power_limit_w", &EnergySource::power_limit_w)
      .def("read", &EnergySource::read, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace dfa::python
