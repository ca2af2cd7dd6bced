// The cards of a made-up NVML, and the file that tells of them (fake_nvml.cpp).
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "sensors/nvml/api.h"

namespace dfa::testing::nvml {

using namespace dfa::nvml;

enum : int { kSuccess = 0, kUninitialized = 1, kInvalid = 2, kUnsupported = 3, kNotFound = 6 };
enum : int { kSmall = 7, kLost = 15 };
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Power {
  std::string shape = "constant";
  double a = 100, b = 0, c = 1;

  // Joules from 0 to t.
  double energy(double t) const {
    if (shape == "step") return a * t + (b - a) * std::max(0.0, t - c);
    if (shape == "sine") return a * t + b * c / (2 * M_PI) * (1 - std::cos(2 * M_PI * t / c));
    return a * t;
  }
  double watts(double t) const {
    if (shape == "step") return t < c ? a : b;
    if (shape == "sine") return a + b * std::sin(2 * M_PI * t / c);
    return a;
  }
};

struct Card {
  std::string name, uuid, pci;
  Power power;
  double tick = 0.1, reset = kNever, stuck = kNever, limit = 700, throttled = 0, gpm = -1;
  double temperature = 40, memory_temperature = 50, sm_hz = 1.98e9, memory_hz = 3.2e9, used = 1e9;
  unsigned utilization = 0, memory_utilization = 0, persistence = 1, mig = 0;
  unsigned long long events = 0;
  std::vector<std::uint32_t> pids;
  std::map<std::uint32_t, int> field_errors;
  double limit_least = 200, limit_most = 700;
  double clock_least = 345, clock_most = 1980, clock_step = 15, left_at_half = 1;
  std::string settings;
  int minor = -1;
  double lost_from = kNever, lost_to = kNever;
  unsigned links_up = 0, links = 0;
  double sent = 0, received = 0;

  // The last that was set, or what the scenario says.
  double setting(const std::string& key_wanted, double now) const {
    std::ifstream file(settings);
    for (std::string key, value; file >> key && std::getline(file, value);) {
      if (key == key_wanted) now = std::stod(value);
    }
    return now;
  }
  double set_limit() const { return setting("limit", limit); }
  double clock_hz() const {
    double mhz = sm_hz * 1e-6;
    std::ifstream file(settings);
    for (std::string key, value; file >> key && std::getline(file, value);) {
      if (key != "clocks") continue;
      const bool free = value.find("free") != std::string::npos;
      mhz = free ? sm_hz * 1e-6 : std::stod(value.substr(value.rfind(' ')));
    }
    return mhz * 1e6;
  }
  double left() const {
    return left_at_half == 1 ? 1 : 1 - 2 * (1 - left_at_half) * (1 - clock_hz() / sm_hz);
  }
  bool lost(double t) const { return t >= lost_from && t < lost_to; }
  void set(const std::string& line) const {
    std::ofstream(settings, std::ios::app) << line << "\n";
  }
  double tick_time(double t) const { return tick * std::floor(t / tick + 1e-9); }
  double joules(double t) const {
    const double now = std::min(tick_time(t), stuck);
    return now >= reset ? power.energy(now) - power.energy(reset) : 1000 + power.energy(now);
  }
  double watts(double t) const { return left() * power.watts(tick_time(t)); }
  double watts_of_a_second(double t) const {
    const double now = tick_time(t), from = std::max(0.0, now - 1);
    return left() *
           (now > from ? (power.energy(now) - power.energy(from)) / (now - from) : power.watts(0));
  }
};

struct GpmSample {
  double time = -1;  // not taken
};

struct World {
  int users = 0;
  std::string scenario;
  bool virtual_clock = false;
  double now = 0;
  std::chrono::steady_clock::time_point begin;
  std::string driver = "580.1";
  std::map<std::string, double> latency;
  struct Error {
    int status = 0;
    double until = kNever;
  };
  std::map<std::string, Error> errors;
  std::vector<Card> cards;
  std::set<std::unique_ptr<GpmSample>> samples;  // here, so that one not given back is no leak

  double time() const {
    if (virtual_clock) return now;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

extern std::recursive_mutex mutex;
extern World world;

// The world of the file DFA_FAKE_NVML.
void read_world();

// Half of the time that a call of this function takes.
void take_half(const char* function);

// What every call does first: takes its time, and fails where the scenario says so. A value is of
// the middle of the call, as on a card.
int enter(const char* function);

template <typename Body>
int answer(const char* function, const Body& body) {
  const std::lock_guard lock(mutex);
  int status = enter(function);
  if (status == kSuccess) status = body();
  take_half(function);
  return status;
}

inline Card& card_of(Handle handle) {
  return world.cards[reinterpret_cast<std::uintptr_t>(handle) - 1];
}

template <typename Body>
int of_card(const char* function, Handle handle, const Body& body) {
  return answer(function, [&] {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    if (number == 0 || number > world.cards.size()) return int{kInvalid};
    if (card_of(handle).lost(world.time())) return int{kLost};
    body(card_of(handle));
    return int{kSuccess};
  });
}

template <typename Matches>
int find_card(const char* function, Handle* handle, const Matches& matches) {
  return answer(function, [&] {
    for (std::size_t i = 0; i < world.cards.size(); ++i) {
      if (!matches(world.cards[i])) continue;
      if (world.cards[i].lost(world.time())) return int{kLost};
      *handle = reinterpret_cast<Handle>(i + 1);
      return int{kSuccess};
    }
    return int{kNotFound};
  });
}

}  // namespace dfa::testing::nvml
