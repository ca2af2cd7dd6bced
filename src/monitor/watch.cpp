#include "monitor/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dfa/error.h"

namespace dfa::monitor {
namespace {

using nvml::Gauge;

constexpr Gauge kCounters[] = {Gauge::energy, Gauge::power_capped, Gauge::too_hot};

std::vector<nvml::Value<nvml::Device>> devices_of(
    const std::shared_ptr<const nvml::Library>& library, const std::vector<std::string>& ids) {
  std::vector<nvml::Value<nvml::Device>> devices;
  for (const std::string& id : ids) {
    auto found = nvml::find_device(library, id);
    if (!found.value) throw Unsupported(found.status.reason);
    const auto known = [&](const auto& d) { return d.value->handle() == found.value->handle(); };
    // One card under two names is one: Prometheus takes no series twice.
    if (std::none_of(devices.begin(), devices.end(), known)) devices.push_back(std::move(found));
  }
  if (ids.empty()) {
    auto listed = nvml::list_devices(library);
    if (!listed.value) throw Unsupported("no GPU to watch: " + listed.status.reason);
    devices = std::move(*listed.value);
  }
  if (devices.empty()) throw Unsupported("no GPU to watch: NVML lists none");
  return devices;
}

}  // namespace

std::optional<double> value_of(const CardNow& card, Gauge gauge) {
  const auto found = card.values.find(gauge);
  return found != card.values.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<double> growth_of(const CardNow& card, Gauge gauge) {
  const auto found = card.growth.find(gauge);
  return found != card.growth.end() ? found->second.sum : std::nullopt;
}

std::string name_of(const CardNow& card) {
  const std::string& id = card.facts.pci_id;
  if (!card.facts.index) return "GPU " + id;
  return fmt::format("GPU {}{}", *card.facts.index, id.empty() ? "" : " (" + id + ")");
}

void Watch::Counter::add(const std::optional<Reading>& now, const std::string& break_reason) {
  growth_.sum.reset();  // what was true at an earlier look is not what is true now
  if (!now) return;
  if (last_ && now->breaks != last_->breaks) lose(break_reason);
  if (last_ && now->value < last_->value) {
    lose(fmt::format("the counter went back from {:.3f} to {:.3f}", last_->value, now->value));
  }
  if (last_) sum_ += now->value - last_->value;
  last_ = now;
  growth_.sum = sum_;
}

void Watch::Counter::lose(const std::string& reason) {
  growth_.sum.reset();
  if (!last_) return;
  last_.reset();
  ++growth_.breaks;
  growth_.break_reason = reason;
}

Watch::Watch(const std::vector<std::string>& ids, const Clock& clock) : clock_(clock) {
  const nvml::OpenedLibrary opened = nvml::open_library();
  if (!opened.library) throw Unsupported("no GPU to watch: " + opened.status.reason);
  library_ = opened.library;
  int place = 0;
  for (auto& found : devices_of(library_, ids)) add(std::move(found), ids.empty() ? place++ : -1);
  look();  // from here on counters count
}

// `place` is that in NVML's list, -1 where the card was found by its id.
void Watch::add(nvml::Value<nvml::Device> found, int place) {
  Card card;
  card.last.status = found.status;
  if (found.value) card.last.facts = found.value->facts();
  if (place >= 0) card.last.facts.index = place;
  card.device = std::move(found.value);
  for (const Gauge gauge : kCounters) card.counters[gauge] = {};
  cards_.push_back(std::move(card));
}

std::vector<CardNow> Watch::look() {
  std::vector<CardNow> now;
  for (Card& card : cards_) now.push_back(look_at(card));
  return now;
}

void Watch::open(Card& card) {
  const nvml::DeviceFacts& known = card.last.facts;
  auto found = known.uuid.empty() ? nvml::device_at(library_, known.index.value_or(-1))
                                  : nvml::find_device(library_, known.uuid);
  card.last.status = found.status;
  if (!found.value) return;
  const auto index = known.index;
  card.last.facts = found.value->facts();
  if (!card.last.facts.index) card.last.facts.index = index;
  card.device = std::move(found.value);
}

void Watch::close(Card& card, const std::string& reason) {
  card.device.reset();
  card.meters.clear();
  for (auto& [gauge, counter] : card.counters) counter.lose(reason);
}

CardNow Watch::look_at(Card& card) {
  if (!card.device) open(card);
  CardNow now = card.last;
  if (card.device) read(card, now);
  for (const auto& [gauge, counter] : card.counters) now.growth[gauge] = counter.growth();
  return now;
}

void Watch::read(Card& card, CardNow& now) {
  now.settings = card.device->settings();
  // Power and energy are then of something else: of all instances, or of one card again.
  if (now.settings.mig != std::exchange(card.last.settings.mig, now.settings.mig)) {
    card.meters.clear();
    for (auto& [gauge, counter] : card.counters) counter.lose("MIG mode was switched");
  }
  for (const nvml::GaugeInfo& info : nvml::gauges()) read(card, info.gauge, now);
  if (!now.values.empty()) return;
  now.status = Verdict::no("no sensor answers: " + now.missing.at(Gauge::temperature));
  now.missing.clear();
  close(card, now.status.reason);
}

void Watch::read(Card& card, Gauge gauge, CardNow& now) {
  sensors::MeterSet& set = card.meters[gauge];
  const bool closed = set.empty();
  if (closed) set = nvml::open_meter(*card.device, gauge, clock_);
  const auto reading = set.empty() ? std::nullopt : set.meters[0]->read();
  if (reading) {
    now.values[gauge] = reading->value;
  } else {
    now.missing[gauge] = set.empty() ? set.status.reason : set.meters[0]->status().reason;
  }
  const auto counter = card.counters.find(gauge);
  if (counter == card.counters.end()) return;
  if (closed) counter->second.lose("the sensor was opened anew");
  counter->second.add(reading, set.empty() ? "" : set.meters[0]->break_reason());
}

}  // namespace dfa::monitor
