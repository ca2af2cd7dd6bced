#include "monitor/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dfa/error.h"

namespace dfa::monitor {
namespace {

constexpr Gauge kCounters[] = {Gauge::energy, Gauge::power_capped, Gauge::too_hot,
                               Gauge::nvlink_sent, Gauge::nvlink_received};
constexpr double kRateOver = 0.5;  // s: some ticks of a counter; NVLink's are assumed

bool same(const sensors::GpuCard& a, const sensors::GpuCard& b) {
  return a.facts().uuid == b.facts().uuid && a.facts().pci_id == b.facts().pci_id;
}

std::vector<sensors::Value<sensors::CardPtr>> cards_of(const sensors::GpuSensors& sensors,
                                                       const std::vector<std::string>& ids) {
  std::vector<sensors::Value<sensors::CardPtr>> devices;
  for (const std::string& id : ids) {
    auto found = sensors.find(id);
    if (!found.value) throw Unsupported(found.status.reason);
    const auto known = [&](const auto& d) { return same(**d.value, **found.value); };
    // One card under two names is one: Prometheus takes no series twice.
    if (std::none_of(devices.begin(), devices.end(), known)) devices.push_back(std::move(found));
  }
  if (ids.empty()) {
    auto listed = sensors.list();
    if (!listed.value) throw Unsupported("no GPU to watch: " + listed.status.reason);
    devices = std::move(*listed.value);
  }
  if (devices.empty()) throw Unsupported("no GPU to watch: NVML lists none");
  return devices;
}

}  // namespace

const char* sensor_of(const CardNow& card, Gauge gauge) {
  for (const sensors::GaugeInfo& info : card.gauges) {
    if (info.gauge == gauge) return info.name;
  }
  return "";
}

std::optional<double> value_of(const CardNow& card, Gauge gauge) {
  const auto found = card.values.find(gauge);
  return found != card.values.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<double> growth_of(const CardNow& card, Gauge gauge) {
  const auto found = card.growth.find(gauge);
  return found != card.growth.end() ? found->second.sum : std::nullopt;
}

std::optional<double> rate_of(const CardNow& card, Gauge gauge) {
  const auto found = card.growth.find(gauge);
  return found != card.growth.end() ? found->second.per_s : std::nullopt;
}

std::string name_of(const CardNow& card) {
  const std::string& id = card.facts.pci_id;
  if (!card.facts.index) return "GPU " + id;
  return fmt::format("GPU {}{}", *card.facts.index, id.empty() ? "" : " (" + id + ")");
}

void Watch::Counter::add(const std::optional<Reading>& now, const std::string& break_reason) {
  growth_.sum.reset();  // what was true at an earlier look is not what is true now
  if (!now) growth_.per_s.reset();
  if (!now) return;
  if (last_ && now->breaks != last_->breaks) lose(break_reason);
  if (last_ && now->value < last_->value) {
    lose(fmt::format("the counter went back from {:.3f} to {:.3f}", last_->value, now->value));
  }
  if (last_) sum_ += now->value - last_->value;
  last_ = now;
  growth_.sum = sum_;
  const double seconds = rated_ ? now->time_s - rated_->time_s : 0;
  if (rated_ && seconds < kRateOver) return;
  if (rated_) growth_.per_s = (now->value - rated_->value) / seconds;
  rated_ = now;
}

void Watch::Counter::lose(const std::string& reason) {
  growth_.sum.reset();
  growth_.per_s.reset();
  rated_.reset();
  if (!last_) return;
  last_.reset();
  ++growth_.breaks;
  growth_.break_reason = reason;
}

Watch::Watch(const std::vector<std::string>& ids, const Clock& clock) : clock_(clock) {
  if (!sensors_.status()) throw Unsupported("no GPU to watch: " + sensors_.status().reason);
  int place = 0;
  for (auto& found : cards_of(sensors_, ids)) add(std::move(found), ids.empty() ? place++ : -1);
  look();  // from here on counters count
}

// `place` is that in NVML's list, -1 where the card was found by its id.
void Watch::add(sensors::Value<sensors::CardPtr> found, int place) {
  Card card;
  card.last.status = found.status;
  if (found.value) card.last.facts = (*found.value)->facts();
  if (place >= 0) card.last.facts.index = place;
  card.device = found.value.value_or(nullptr);
  for (const Gauge gauge : kCounters) card.counters[gauge] = {};
  cards_.push_back(std::move(card));
}

std::vector<CardNow> Watch::look() {
  std::vector<CardNow> now;
  for (Card& card : cards_) now.push_back(look_at(card));
  return now;
}

void Watch::open(Card& card) {
  const sensors::CardFacts& known = card.last.facts;
  auto found =
      known.uuid.empty() ? sensors_.at(known.index.value_or(-1)) : sensors_.find(known.uuid);
  card.last.status = found.status;
  if (!found.value) return;
  const auto index = known.index;
  card.last.facts = (*found.value)->facts();
  if (!card.last.facts.index) card.last.facts.index = index;
  card.device = std::move(*found.value);
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
  now.gauges = card.last.gauges = card.device->gauges();
  for (const sensors::GaugeInfo& info : now.gauges) read(card, info.gauge, now);
  if (!now.values.empty()) return;
  now.status = Verdict::no("no sensor answers: " + now.missing.at(Gauge::temperature));
  now.missing.clear();
  close(card, now.status.reason);
}

void Watch::read(Card& card, Gauge gauge, CardNow& now) {
  sensors::MeterSet& set = card.meters[gauge];
  const bool closed = set.empty();
  if (closed) set = card.device->open(gauge, clock_);
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
