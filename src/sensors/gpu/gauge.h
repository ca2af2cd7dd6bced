#pragma once

#include <cstdint>
#include <string>

#include "contract/meter.h"

namespace dfa::sensors {

// Everything that is read from a card. What a driver or card does not offer is a reason.
enum class Gauge : int {
  energy,              // since the meter was opened
  power,               // over the last 25 ms of each 100 ms (field 186): for peaks
  power_average,       // over the last second
  temperature,         // of the die
  memory_temperature,  // of the HBM
  sm_clock,
  memory_clock,
  utilization,         // time with any kernel resident; says nothing about how many SMs work
  memory_utilization,  // time with memory being read or written
  memory_used,         // by all processes
  clock_events,        // why clocks are where they are: bits of ClockEvent
  power_capped,        // time below the wanted clock because of the power limit
  too_hot,             // … because of temperature, decided by software
  hardware_too_hot,    // … because of temperature, decided by hardware
  power_brake,         // … because of a signal from outside the card
  sm_active,           // by the card's profiling counters (GPM), Hopper and later
  tensor_active,
  dram_active,
  nvlink_sent,      // payload over all links to other cards, without the protocol's own bytes
  nvlink_received,  // the same from other cards
};

struct GaugeInfo {
  Gauge gauge;
  const char* name;  // "nvml:energy": by whom, and what
  Quantity quantity;
  double period_s;  // how often the value changes
};

// By profiling counters, whose first value comes a tenth of a second later.
bool is_activity(Gauge gauge);

// Bits of Gauge::clock_events.
enum class ClockEvent : std::uint64_t {
  idle = 0x1,
  application_clocks = 0x2,
  power_cap = 0x4,
  hardware_slowdown = 0x8,
  sync_boost = 0x10,
  thermal_slowdown = 0x20,
  hardware_thermal = 0x40,
  hardware_power_brake = 0x80,
  display_clocks = 0x100,
};

// "power_cap, thermal_slowdown" for the set bits, "none" for 0; unknown bits in hexadecimal.
std::string clock_event_names(std::uint64_t bits);

}  // namespace dfa::sensors
