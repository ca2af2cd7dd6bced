#pragma once

#include <optional>
#include <span>
#include <string>

#include "monitor/sum.h"

namespace dfa::monitor {

// The text that Prometheus scrapes (exposition format 0.0.4). Names and units are those of NVIDIA's
// DCGM exporter, so that its dashboards serve; what a card does not measure is left out, and
// dfa_sensor_missing tells why, dfa_card_missing of a whole card. Label `gpu` is NVML's index,
// `device` the name of the device file. dfa_counter_breaks tells of counts that began anew.
std::string to_metrics(std::span<const CardNow> cards, const std::string& hostname);

// Of all cards together, and how that stands to a budget. Labels `cards` and `of`: how many are in
// the sum, so that one that falls silent makes another series and not a smaller number.
std::string to_metrics(const Sum& sum, const std::optional<BudgetState>& budget,
                       const std::string& hostname);

}  // namespace dfa::monitor
