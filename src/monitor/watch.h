#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contract/clock.h"
#include "sensors/gpu/registry.h"

namespace dfa::monitor {

using sensors::Gauge;

// What a counter counted since the watch began: growth between readings. What was used around a
// break is not in it, and such breaks are counted.
struct Growth {
  std::optional<double> sum;  // empty where the counter says nothing now
  int breaks = 0;
  std::string break_reason;     // of the last one
  std::optional<double> per_s;  // mean of the last half second or more
};

// What one card's sensors said at one moment. A gauge that said nothing is not in `values`; why not
// is in `missing`.
struct CardNow {
  Verdict status;  // no, with the reason: it is counted, or was named, and does not answer
  sensors::CardFacts facts;  // of a card that is lost, those of before
  sensors::CardSettings settings;
  std::span<const sensors::GaugeInfo> gauges;  // that it has, with their names
  std::map<Gauge, double> values;
  std::map<Gauge, std::string> missing;
  std::map<Gauge, Growth> growth;  // of energy, time held down, NVLink
};

const char* sensor_of(const CardNow& card, Gauge gauge);  // "nvml:power"
std::optional<double> value_of(const CardNow& card, Gauge gauge);
std::optional<double> growth_of(const CardNow& card, Gauge gauge);
std::optional<double> rate_of(const CardNow& card, Gauge gauge);  // of that growth, per second

// "GPU 1 (0000:5e:00.0)", as far as it is known.
std::string name_of(const CardNow& card);

// Reads every sensor of some cards. Whatever does not answer, a card or a sensor, is tried again at
// each look.
class Watch {
 public:
  // All cards that a library counts or, with `ids`, those of these PCI bus ids or UUIDs. Throws
  // Unsupported where there is none, with the reason.
  Watch(const std::vector<std::string>& ids, const Clock& clock);

  std::vector<CardNow> look();

 private:
  // One counter, and where it stood when it last said something.
  class Counter {
   public:
    void add(const std::optional<Reading>& now, const std::string& break_reason);
    void lose(const std::string& reason);  // what was used since then is not known
    const Growth& growth() const { return growth_; }

   private:
    Growth growth_;
    double sum_ = 0;
    std::optional<Reading> last_;
    std::optional<Reading> rated_;  // from where the rate is taken
  };
  struct Card {
    sensors::CardPtr device;  // null where it does not answer
    CardNow last;             // without readings: who it is
    std::map<Gauge, sensors::MeterSet> meters;
    std::map<Gauge, Counter> counters;
  };

  void add(sensors::Value<sensors::CardPtr> found, int place);
  void open(Card& card);
  void close(Card& card, const std::string& reason);
  CardNow look_at(Card& card);
  void read(Card& card, CardNow& now);
  void read(Card& card, Gauge gauge, CardNow& now);

  sensors::GpuSensors sensors_;
  const Clock& clock_;
  std::vector<Card> cards_;
};

}  // namespace dfa::monitor
