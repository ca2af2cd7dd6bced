#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "contract/clock.h"
#include "sensors/nvml/meters.h"

namespace dfa::monitor {

// What one card's sensors said at one moment. A gauge that said nothing is not in `values`; why not
// is in `missing`.
struct CardNow {
  int index = 0;  // in NVML's order
  nvml::DeviceFacts facts;
  std::map<nvml::Gauge, double> values;
  std::map<nvml::Gauge, std::string> missing;
  // Since the watch began; a counter that starts anew goes on from where it was.
  std::optional<double> energy_j;
  std::optional<double> power_capped_s;
  std::optional<double> too_hot_s;
};

std::optional<double> value_of(const CardNow& card, nvml::Gauge gauge);

// Reads every sensor of some cards.
class Watch {
 public:
  // All cards that NVML lists or, with `ids`, those of these PCI bus ids or UUIDs. Throws
  // Unsupported where there is none, with the reason.
  Watch(const std::vector<std::string>& ids, const Clock& clock);

  std::vector<CardNow> look();

 private:
  // A counter's growth since the first reading.
  struct Growth {
    std::optional<double> last;
    double sum = 0;
    std::optional<double> add(std::optional<double> value);
  };
  struct Card {
    nvml::Device device;
    std::map<nvml::Gauge, sensors::MeterSet> meters;
    Growth energy, power_capped, too_hot;
  };

  CardNow look_at(Card& card);

  std::vector<Card> cards_;
};

}  // namespace dfa::monitor
