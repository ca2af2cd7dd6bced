#include "monitor/watch.h"

#include <algorithm>
#include <utility>

#include "dfa/error.h"

namespace dfa::monitor {
namespace {

std::vector<nvml::Device> devices_of(const std::vector<std::string>& ids) {
  const nvml::OpenedLibrary opened = nvml::open_library();
  if (!opened.library) throw Unsupported("no GPU to watch: " + opened.status.reason);
  std::vector<nvml::Device> devices;
  for (const std::string& id : ids) {
    const auto found = nvml::find_device(opened.library, id);
    if (!found.value) throw Unsupported(found.status.reason);
    devices.push_back(*found.value);
  }
  if (ids.empty()) {
    auto listed = nvml::list_devices(opened.library);
    if (!listed.value) throw Unsupported("no GPU to watch: " + listed.status.reason);
    devices = std::move(*listed.value);
  }
  if (devices.empty()) throw Unsupported("no GPU to watch: NVML lists none");
  return devices;
}

}  // namespace

std::optional<double> value_of(const CardNow& card, nvml::Gauge gauge) {
  const auto found = card.values.find(gauge);
  return found != card.values.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<double> Watch::Growth::add(std::optional<double> value) {
  if (value && last) sum += std::max(0.0, *value - *last);
  if (value) last = value;
  return last ? std::optional(sum) : std::nullopt;
}

Watch::Watch(const std::vector<std::string>& ids, const Clock& clock) {
  for (const nvml::Device& device : devices_of(ids)) {
    Card card{device, {}, {}, {}, {}};
    for (const nvml::GaugeInfo& info : nvml::gauges()) {
      card.meters.emplace(info.gauge, nvml::open_meter(device, info.gauge, clock));
    }
    cards_.push_back(std::move(card));
  }
}

std::vector<CardNow> Watch::look() {
  std::vector<CardNow> now;
  for (Card& card : cards_) {
    now.push_back(look_at(card));
    now.back().index = static_cast<int>(now.size()) - 1;
  }
  return now;
}

CardNow Watch::look_at(Card& card) {
  CardNow now;
  now.facts = card.device.facts();
  for (auto& [gauge, set] : card.meters) {
    const auto reading = set.empty() ? std::nullopt : set.meters[0]->read();
    if (reading) {
      now.values[gauge] = reading->value;
    } else {
      now.missing[gauge] = set.empty() ? set.status.reason : set.meters[0]->status().reason;
    }
  }
  now.energy_j = card.energy.add(value_of(now, nvml::Gauge::energy));
  now.power_capped_s = card.power_capped.add(value_of(now, nvml::Gauge::power_capped));
  now.too_hot_s = card.too_hot.add(value_of(now, nvml::Gauge::too_hot));
  return now;
}

}  // namespace dfa::monitor
