#include "sensors/gpu/registry.h"

#include <utility>

#include "sensors/nvml/source.h"

namespace dfa::sensors {
namespace {

constexpr Value<std::shared_ptr<const GpuSource>> (*kOpen[])() = {&nvml::open_source};

}  // namespace

GpuSensors::GpuSensors() {
  for (const auto open : kOpen) {
    auto source = open();
    if (source.value) {
      sources_.push_back(std::move(*source.value));
    } else if (status_) {
      status_ = source.status;
    }
  }
  if (!sources_.empty()) status_ = Verdict::yes();
}

std::vector<std::string> GpuSensors::descriptions() const {
  std::vector<std::string> texts;
  for (const auto& source : sources_) texts.push_back(source->description());
  return texts;
}

Value<CardPtr> GpuSensors::find(const std::string& id) const {
  Value<CardPtr> first{std::nullopt, status_};
  for (const auto& source : sources_) {
    Value<CardPtr> found = source->find(id);
    if (found.value) return found;
    if (first.status) first.status = found.status;
  }
  return first;
}

Value<CardPtr> GpuSensors::at(int place) const {
  for (const auto& source : sources_) {
    const auto listed = source->list();
    const int count = listed.value ? static_cast<int>(listed.value->size()) : 0;
    if (place < count || source == sources_.back()) return source->at(place);
    place -= count;
  }
  return {std::nullopt, status_};
}

Value<std::vector<Value<CardPtr>>> GpuSensors::list() const {
  Value<std::vector<Value<CardPtr>>> all{std::nullopt, status_};
  for (const auto& source : sources_) {
    auto listed = source->list();
    if (!listed.value) {
      if (all.status) all.status = listed.status;
      continue;
    }
    if (!all.value) all.value.emplace();
    for (auto& card : *listed.value) all.value->push_back(std::move(card));
  }
  return all;
}

Value<CardPtr> find_card(const std::string& id) {
  const GpuSensors sensors;
  if (!sensors.status()) return {std::nullopt, sensors.status()};
  return sensors.find(id);
}

MeterSet open_meter(const Value<CardPtr>& card, Gauge gauge, const Clock& clock) {
  return card.value ? (*card.value)->open(gauge, clock) : MeterSet{{}, card.status};
}

}  // namespace dfa::sensors
