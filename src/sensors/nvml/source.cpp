#include "sensors/nvml/source.h"

#include <fmt/format.h>

#include <utility>

#include "sensors/nvml/meters.h"

namespace dfa::nvml {
namespace {

class NvmlCard final : public sensors::GpuCard {
 public:
  explicit NvmlCard(Device device) : device_(std::move(device)) {}

  const DeviceFacts& facts() const override { return device_.facts(); }
  DeviceSettings settings() const override { return device_.settings(); }
  Value<ComputeProcesses> compute_processes() const override { return device_.compute_processes(); }
  Value<std::vector<double>> sm_clocks_hz() const override { return device_.sm_clocks_hz(); }
  std::span<const GaugeInfo> gauges() const override { return nvml::gauges(); }
  sensors::MeterSet open(Gauge gauge, const Clock& clock) const override {
    return open_meter(device_, gauge, clock);
  }

 private:
  Device device_;
};

Value<sensors::CardPtr> card_of(Value<Device> found) {
  if (!found.value) return {std::nullopt, std::move(found.status)};
  return {std::make_shared<const NvmlCard>(std::move(*found.value)), {}};
}

class NvmlSource final : public sensors::GpuSource {
 public:
  explicit NvmlSource(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  std::string description() const override {
    return fmt::format("{}, NVML {}", library_->file(), library_->version());
  }
  Value<sensors::CardPtr> find(const std::string& id) const override {
    return card_of(find_device(library_, id));
  }
  Value<sensors::CardPtr> at(int place) const override {
    return card_of(device_at(library_, place));
  }
  Value<std::vector<Value<sensors::CardPtr>>> list() const override {
    auto listed = list_devices(library_);
    if (!listed.value) return {std::nullopt, std::move(listed.status)};
    std::vector<Value<sensors::CardPtr>> cards;
    for (auto& device : *listed.value) cards.push_back(card_of(std::move(device)));
    return {std::move(cards), {}};
  }

 private:
  std::shared_ptr<const Library> library_;
};

}  // namespace

sensors::Value<std::shared_ptr<const sensors::GpuSource>> open_source() {
  OpenedLibrary opened = open_library();
  if (!opened.library) return {std::nullopt, std::move(opened.status)};
  return {std::make_shared<const NvmlSource>(std::move(opened.library)), {}};
}

}  // namespace dfa::nvml
