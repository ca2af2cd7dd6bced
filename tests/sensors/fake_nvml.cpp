// A made-up NVML: a shared library that answers as the text file DFA_FAKE_NVML says. Read at the
// first nvmlInit, and when another file is named. One statement a line, # starts a comment; SI
// units:
//
//   driver 580.1
//   clock virtual|real                virtual: only sleep and latency move it
//   latency FUNCTION SECONDS          a call takes this long
//   error FUNCTION STATUS [UNTIL]     a call answers this status instead, for ever or until then
//   card NAME UUID PCI                what follows is about this card
//   minor NUMBER                      of its device file (default: its place in the list)
//   lost FROM TO                      is counted, and answers nothing from then to then
//   power constant W | step LOW HIGH AT | sine MEAN AMPLITUDE PERIOD
//   tick SECONDS                      counter and power change this often (default 0.1)
//   reset AT | stuck AT               the energy counter starts anew, stands still
//   limit W   temperature DIE MEMORY   clocks SM MEMORY   utilization GPU MEMORY   used BYTES
//   events BITS   throttled SHARE     share of the time under the power cap
//   nvlink ACTIVE LINKS [SENT RECEIVED]   of LINKS links that many are up; bytes a second over all
//   persistence 0|1   mig 0|1   gpm PERCENT   process PID|own
//   field_error FIELD STATUS   limits LEAST MOST   settings FILE   (what was set, a line each: one
//   file for several processes, as a card is)
//   sm_clocks LEAST MOST STEP   in MHz, that may be locked (default 345 1980 15)
//   power_falls SHARE   of the power is left at half the clock SM, where clocks are locked; of what
//                       power meters show, not of the counter
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <thread>

#include "sensors/fake_world.h"

namespace {

using namespace dfa::testing::nvml;

int copy_text(const std::string& text, char* out, unsigned size) {
  if (text.size() + 1 > size) return kSmall;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

// "0000:3b:00.0" and "00000000:3B:00.0" are the same.
std::string plain(std::string pci) {
  for (char& c : pci) c = static_cast<char>(std::tolower(c));
  return pci.size() == 16 ? pci.substr(4) : pci;
}

// Of one link, or with the largest scope of all. What a card without links answers is 0.
double nvlink_kib(const Card& card, double bytes_a_second, std::uint32_t scope, double now) {
  const bool all = scope == std::numeric_limits<std::uint32_t>::max();
  const double share = all ? 1 : scope < card.links_up ? 1.0 / card.links_up : 0;
  return card.links_up == 0 ? 0 : share * bytes_a_second * now / 1024;
}

void fill_field(const Card& card, FieldValue& field) {
  const double now = world.time();
  const auto error = card.field_errors.find(field.field);
  field.status = error != card.field_errors.end() ? error->second : kSuccess;
  if (field.status != kSuccess) return;
  field.type = ValueType::u32;
  const auto u32 = [&](double value) {
    field.value.u32 = static_cast<std::uint32_t>(std::llround(value));
  };
  const auto u64 = [&](double value) {
    field.type = ValueType::u64;
    field.value.u64 = static_cast<std::uint64_t>(std::llround(value));
  };
  switch (field.field) {
    case 74: return u64(card.throttled * now * 1e9);
    case 75:
    case 270:
    case 271: return u64(0);
    case 138: return u64(nvlink_kib(card, card.sent, field.scope, now));
    case 139: return u64(nvlink_kib(card, card.received, field.scope, now));
    case 82: return u32(card.memory_temperature);
    case 185: return u32(card.watts_of_a_second(now) * 1e3);
    case 186: return u32(card.watts(now) * 1e3);
    default: field.status = kUnsupported;
  }
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE double dfa_fake_nvml_now() {
  const std::lock_guard lock(mutex);
  return world.time();
}

FAKE void dfa_fake_nvml_sleep(double seconds) {
  std::unique_lock lock(mutex);
  if (world.virtual_clock) {
    world.now += seconds;
    return;
  }
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

FAKE bool dfa_fake_nvml_ready() {
  const std::lock_guard lock(mutex);
  return world.users > 0;
}

FAKE int nvmlInit_v2() {
  const std::lock_guard lock(mutex);
  const char* path = std::getenv("DFA_FAKE_NVML");
  if (world.users == 0 || world.scenario != (path != nullptr ? path : "")) {
    const int users = world.users;  // of the world before: their shutdowns are still to come
    read_world();
    world.users = users;
  }
  const auto error = world.errors.find(__func__);
  if (error != world.errors.end()) return error->second.status;
  ++world.users;  // counted, as the real one does
  return kSuccess;
}

FAKE int nvmlShutdown() {
  return answer(__func__, [] {
    --world.users;
    return int{kSuccess};
  });
}

FAKE int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return answer(__func__, [&] { return copy_text(world.driver, text, size); });
}

FAKE int nvmlSystemGetNVMLVersion(char* text, unsigned size) {
  return answer(__func__, [&] { return copy_text("13." + world.driver, text, size); });
}

FAKE int nvmlDeviceGetCount_v2(unsigned* count) {
  return answer(__func__, [&] {
    *count = static_cast<unsigned>(world.cards.size());
    return int{kSuccess};
  });
}

FAKE int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  unsigned at = 0;
  return find_card(__func__, handle, [&](const Card&) { return at++ == index; });
}

FAKE int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* handle) {
  return find_card(__func__, handle, [&](const Card& c) { return plain(c.pci) == plain(id); });
}

FAKE int nvmlDeviceGetHandleByUUID(const char* id, Handle* handle) {
  return find_card(__func__, handle, [&](const Card& card) { return card.uuid == id; });
}

FAKE int nvmlDeviceGetName(Handle handle, char* text, unsigned size) {
  return of_card(__func__, handle, [&](const Card& card) { copy_text(card.name, text, size); });
}

FAKE int nvmlDeviceGetUUID(Handle handle, char* text, unsigned size) {
  return of_card(__func__, handle, [&](const Card& card) { copy_text(card.uuid, text, size); });
}

FAKE int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  return of_card(__func__, handle,
                 [&](const Card& card) { copy_text(card.pci, info->bus_id, sizeof info->bus_id); });
}

FAKE int nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  return of_card(__func__, handle, [&](const Card&) {
    *index = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(handle) - 1);
  });
}

FAKE int nvmlDeviceGetMinorNumber(Handle handle, unsigned* minor) {
  return of_card(__func__, handle, [&](const Card& card) {
    const auto index = reinterpret_cast<std::uintptr_t>(handle) - 1;
    *minor = static_cast<unsigned>(card.minor >= 0 ? card.minor : static_cast<int>(index));
  });
}

FAKE int nvmlDeviceGetEnforcedPowerLimit(Handle handle, unsigned* milliwatts) {
  return of_card(__func__, handle,
                 [&](const Card& c) { *milliwatts = static_cast<unsigned>(c.set_limit() * 1e3); });
}

FAKE int nvmlDeviceGetPowerManagementLimit(Handle handle, unsigned* milliwatts) {
  return of_card(__func__, handle,
                 [&](const Card& c) { *milliwatts = static_cast<unsigned>(c.set_limit() * 1e3); });
}

FAKE int nvmlDeviceGetPowerManagementLimitConstraints(Handle handle, unsigned* least,
                                                      unsigned* most) {
  return of_card(__func__, handle, [&](const Card& card) {
    *least = static_cast<unsigned>(card.limit_least * 1e3);
    *most = static_cast<unsigned>(card.limit_most * 1e3);
  });
}

FAKE int nvmlDeviceSetPowerManagementLimit(Handle handle, unsigned milliwatts) {
  return of_card(__func__, handle, [&](const Card& card) {
    std::ostringstream line;
    line << "limit " << milliwatts * 1e-3;
    card.set(line.str());
  });
}

FAKE int nvmlDeviceSetGpuLockedClocks(Handle handle, unsigned least, unsigned most) {
  return of_card(__func__, handle, [&](const Card& card) {
    card.set("clocks " + std::to_string(least) + " " + std::to_string(most));
  });
}

FAKE int nvmlDeviceGetSupportedMemoryClocks(Handle handle, unsigned* count, unsigned* mhz) {
  return of_card(__func__, handle, [&](const Card& card) {
    *count = 1;
    *mhz = static_cast<unsigned>(card.memory_hz * 1e-6);
  });
}

FAKE int nvmlDeviceGetSupportedGraphicsClocks(Handle handle, unsigned, unsigned* count,
                                              unsigned* mhz) {
  return of_card(__func__, handle, [&](const Card& card) {
    const unsigned most = *count;
    *count = 0;
    for (double at = card.clock_most; at >= card.clock_least && *count < most;
         at -= card.clock_step) {
      mhz[(*count)++] = static_cast<unsigned>(at);
    }
  });
}

FAKE int nvmlDeviceResetGpuLockedClocks(Handle handle) {
  return of_card(__func__, handle, [&](const Card& card) { card.set("clocks free"); });
}

FAKE int nvmlDeviceGetPersistenceMode(Handle handle, int* mode) {
  return of_card(__func__, handle, [&](const Card& c) { *mode = static_cast<int>(c.persistence); });
}

FAKE int nvmlDeviceGetMigMode(Handle handle, unsigned* now, unsigned* pending) {
  return of_card(__func__, handle, [&](const Card& card) {
    *now = *pending = static_cast<unsigned>(card.setting("mig", card.mig));
  });
}

FAKE int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count,
                                                 ProcessInfo* infos) {
  return answer(__func__, [&] {
    const Card& card = card_of(handle);
    const bool fits = card.pids.size() <= *count;
    *count = static_cast<unsigned>(card.pids.size());
    if (!fits) return int{kSmall};
    for (std::size_t i = 0; i < card.pids.size(); ++i) infos[i] = {card.pids[i], 1 << 20, 0, 0};
    return int{kSuccess};
  });
}

FAKE int nvmlDeviceGetTotalEnergyConsumption(Handle handle, unsigned long long* millijoules) {
  return of_card(__func__, handle, [&](const Card& card) {
    *millijoules = static_cast<unsigned long long>(std::llround(card.joules(world.time()) * 1e3));
  });
}

FAKE int nvmlDeviceGetPowerUsage(Handle handle, unsigned* milliwatts) {
  return of_card(__func__, handle, [&](const Card& card) {
    *milliwatts = static_cast<unsigned>(card.watts_of_a_second(world.time()) * 1e3);
  });
}

FAKE int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue* fields) {
  return of_card(__func__, handle, [&](const Card& card) {
    for (int i = 0; i < count; ++i) fill_field(card, fields[i]);
  });
}

FAKE int nvmlDeviceGetTemperature(Handle handle, int, unsigned* celsius) {
  return of_card(__func__, handle,
                 [&](const Card& c) { *celsius = static_cast<unsigned>(c.temperature); });
}

FAKE int nvmlDeviceGetClockInfo(Handle handle, int which, unsigned* mhz) {
  return of_card(__func__, handle, [&](const Card& card) {
    *mhz = static_cast<unsigned>((which == 2 ? card.memory_hz : card.clock_hz()) * 1e-6);
  });
}

FAKE int nvmlDeviceGetUtilizationRates(Handle handle, Utilization* got) {
  return of_card(__func__, handle, [&](const Card& card) {
    *got = {card.utilization, card.memory_utilization};
  });
}

FAKE int nvmlDeviceGetMemoryInfo(Handle handle, Memory* got) {
  return of_card(__func__, handle, [&](const Card& card) {
    const auto used = static_cast<std::uint64_t>(card.used);
    *got = {std::uint64_t{1} << 37, (std::uint64_t{1} << 37) - used, used};
  });
}

FAKE int nvmlDeviceGetCurrentClocksEventReasons(Handle handle, unsigned long long* bits) {
  return of_card(__func__, handle, [&](const Card& card) { *bits = card.events; });
}

FAKE int nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle, unsigned long long* bits) {
  return of_card(__func__, handle, [&](const Card& card) { *bits = card.events; });
}

FAKE int nvmlDeviceGetNvLinkState(Handle handle, unsigned link, int* active) {
  return answer(__func__, [&] {
    const Card& card = card_of(handle);
    if (card.lost(world.time())) return int{kLost};
    if (card.links == 0) return int{kUnsupported};
    if (link >= card.links) return int{kInvalid};
    *active = link < card.links_up;
    return int{kSuccess};
  });
}

FAKE int nvmlGpmQueryDeviceSupport(Handle handle, GpmSupport* support) {
  return of_card(__func__, handle, [&](const Card& card) { support->supported = card.gpm >= 0; });
}

FAKE int nvmlGpmSampleAlloc(GpmSampleHandle* sample) {
  return answer(__func__, [&] {
    *sample = reinterpret_cast<GpmSampleHandle>(
        world.samples.insert(std::make_unique<GpmSample>()).first->get());
    return int{kSuccess};
  });
}

FAKE int nvmlGpmSampleFree(GpmSampleHandle sample) {
  return answer(__func__, [&] {
    const auto gone = std::erase_if(world.samples, [&](const auto& one) {
      return reinterpret_cast<GpmSampleHandle>(one.get()) == sample;
    });
    return gone == 1 ? int{kSuccess} : int{kInvalid};
  });
}

FAKE int nvmlGpmSampleGet(Handle handle, GpmSampleHandle sample) {
  return of_card(__func__, handle,
                 [&](const Card&) { reinterpret_cast<GpmSample*>(sample)->time = world.time(); });
}

// Percent is the card's, plus the metric's number, so that mixed-up metrics show. Samples in the
// wrong order, or the same one twice, are refused.
FAKE int nvmlGpmMetricsGet(GpmMetrics* metrics) {
  return answer(__func__, [&] {
    const auto* first = reinterpret_cast<const GpmSample*>(metrics->first);
    const auto* second = reinterpret_cast<const GpmSample*>(metrics->second);
    if (metrics->version != 1 || first->time < 0) return int{kInvalid};
    if (!(second->time > first->time)) return int{kInvalid};
    for (std::uint32_t i = 0; i < metrics->count; ++i) {
      metrics->metrics[i].status = kSuccess;
      metrics->metrics[i].value = world.cards[0].gpm + metrics->metrics[i].id;
    }
    return int{kSuccess};
  });
}
