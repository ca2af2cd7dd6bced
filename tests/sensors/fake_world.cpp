#include "sensors/fake_world.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <thread>

namespace dfa::testing::nvml {

std::recursive_mutex mutex;
World world;

namespace {

void read_card_line(Card& card, const std::string& key, std::istream& in) {
  std::string pid;
  int status = 0;
  std::uint32_t id = 0;
  if (key == "power") in >> card.power.shape >> card.power.a >> card.power.b >> card.power.c;
  if (key == "tick") in >> card.tick;
  if (key == "reset") in >> card.reset;
  if (key == "stuck") in >> card.stuck;
  if (key == "limit") in >> card.limit;
  if (key == "temperature") in >> card.temperature >> card.memory_temperature;
  if (key == "clocks") in >> card.sm_hz >> card.memory_hz;
  if (key == "utilization") in >> card.utilization >> card.memory_utilization;
  if (key == "used") in >> card.used;
  if (key == "events") in >> card.events;
  if (key == "throttled") in >> card.throttled;
  if (key == "persistence") in >> card.persistence;
  if (key == "mig") in >> card.mig;
  if (key == "limits") in >> card.limit_least >> card.limit_most;
  if (key == "settings") in >> card.settings;
  if (key == "sm_clocks") in >> card.clock_least >> card.clock_most >> card.clock_step;
  if (key == "power_falls") in >> card.left_at_half;
  if (key == "minor") in >> card.minor;
  if (key == "lost" && !(in >> card.lost_from >> card.lost_to)) card.lost_to = kNever;
  if (key == "nvlink") in >> card.links_up >> card.links >> card.sent >> card.received;
  if (key == "gpm") in >> card.gpm;
  if (key == "process" && in >> pid) {
    card.pids.push_back(
        static_cast<std::uint32_t>(pid == "own" ? ::getpid() : std::atoi(pid.c_str())));
  }
  if (key == "field_error" && in >> id >> status) card.field_errors[id] = status;
}

}  // namespace

void read_world() {
  world = {};
  world.begin = std::chrono::steady_clock::now();
  const char* path = std::getenv("DFA_FAKE_NVML");
  world.scenario = path != nullptr ? path : "";
  std::ifstream file(world.scenario);
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line.substr(0, line.find('#')));
    std::string key, text;
    double number = 0;
    if (!(in >> key)) continue;
    if (key == "driver") {
      in >> world.driver;
    } else if (key == "clock") {
      in >> text;
      world.virtual_clock = text == "virtual";
    } else if (key == "latency") {
      in >> text >> number;
      world.latency[text] = number;
    } else if (key == "error") {
      World::Error error;
      in >> text >> error.status;
      if (!(in >> error.until)) error.until = kNever;
      world.errors[text] = error;
    } else if (key == "card") {
      world.cards.emplace_back();
      in >> world.cards.back().name >> world.cards.back().uuid >> world.cards.back().pci;
    } else if (!world.cards.empty()) {
      read_card_line(world.cards.back(), key, in);
    }
  }
}

void take_half(const char* function) {
  const auto wait = world.latency.find(function);
  if (wait == world.latency.end()) return;
  world.now += wait->second / 2;
  if (!world.virtual_clock) {
    std::this_thread::sleep_for(std::chrono::duration<double>(wait->second / 2));
  }
}

int enter(const char* function) {
  take_half(function);
  const auto error = world.errors.find(function);
  if (error != world.errors.end() && world.time() < error->second.until) {
    return error->second.status;
  }
  return world.users > 0 ? kSuccess : kUninitialized;
}

}  // namespace dfa::testing::nvml
