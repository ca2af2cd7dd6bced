// Not a test: what NVML costs and how true it is on the card at hand, as JSON. It reads only.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "base/json.h"
#include "sensors/energy_window.h"
#include "sensors/nvml/meters.h"
#include "sensors/sampler.h"
#include "sensors/system_clock.h"

namespace {

using namespace dfa;
using nvml::Gauge;

double median(std::vector<double> values) {
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

Json spread(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return {{"n", values.size()},
          {"min", *std::min_element(values.begin(), values.end())},
          {"median", median(values)},
          {"max", *std::max_element(values.begin(), values.end())}};
}

constexpr const char* kBurnPtx = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry burn(.param .u32 rounds, .param .u64 out)
{
  .reg .pred %p; .reg .u32 %r<4>; .reg .u64 %d; .reg .f32 %f<10>; .reg .f32 %m<24>;
  .reg .b32 %a<4>; .reg .b32 %b<4>;
  ld.param.u32 %r1, [rounds];
  ld.param.u64 %d, [out];
  mov.u32 %r2, %tid.x;
  cvt.rn.f32.u32 %f0, %r2;
  mul.f32 %f0, %f0, 0f3A83126F;
  mov.f32 %f9, 0f3F7FBE77;
  add.f32 %f1, %f0, 0f3F000000; add.f32 %f2, %f0, 0f3E800000;
  add.f32 %f3, %f0, 0f3F400000; add.f32 %f4, %f0, 0f3F200000;
  mov.f32 %m0, %f0; mov.f32 %m1, %f0; mov.f32 %m2, %f0; mov.f32 %m3, %f0;
  mov.f32 %m4, %f0; mov.f32 %m5, %f0; mov.f32 %m6, %f0; mov.f32 %m7, %f0;
  mov.f32 %m8, %f0; mov.f32 %m9, %f0; mov.f32 %m10, %f0; mov.f32 %m11, %f0;
  mov.f32 %m12, %f0; mov.f32 %m13, %f0; mov.f32 %m14, %f0; mov.f32 %m15, %f0;
  mov.f32 %m16, %f0; mov.f32 %m17, %f0; mov.f32 %m18, %f0; mov.f32 %m19, %f0;
  mov.f32 %m20, %f0; mov.f32 %m21, %f0; mov.f32 %m22, %f0; mov.f32 %m23, %f0;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %a0, %r3, 0x807f807f; or.b32 %a0, %a0, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %a1, %r3, 0x807f807f; or.b32 %a1, %a1, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %a2, %r3, 0x807f807f; or.b32 %a2, %a2, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %a3, %r3, 0x807f807f; or.b32 %a3, %a3, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %b0, %r3, 0x807f807f; or.b32 %b0, %b0, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %b1, %r3, 0x807f807f; or.b32 %b1, %b1, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %b2, %r3, 0x807f807f; or.b32 %b2, %b2, 0x3f803f80;
  mad.lo.u32 %r2, %r2, 1664525, 1013904223; shr.u32 %r3, %r2, 7;
  and.b32 %b3, %r3, 0x807f807f; or.b32 %b3, %b3, 0x3f803f80;
again:
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%m0,%m1,%m2,%m3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%m0,%m1,%m2,%m3};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%m4,%m5,%m6,%m7}, {%a0,%a1,%a2,%a3}, {%b2,%b3}, {%m4,%m5,%m6,%m7};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%m8,%m9,%m10,%m11}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%m8,%m9,%m10,%m11};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%m12,%m13,%m14,%m15}, {%a0,%a1,%a2,%a3}, {%b2,%b3}, {%m12,%m13,%m14,%m15};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%m16,%m17,%m18,%m19}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%m16,%m17,%m18,%m19};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    {%m20,%m21,%m22,%m23}, {%a0,%a1,%a2,%a3}, {%b2,%b3}, {%m20,%m21,%m22,%m23};
  fma.rn.f32 %f1, %f1, %f9, %f0; fma.rn.f32 %f2, %f2, %f9, %f0;
  fma.rn.f32 %f3, %f3, %f9, %f0; fma.rn.f32 %f4, %f4, %f9, %f0;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p, %r1, 0;
  @%p bra again;
  add.f32 %f1, %f1, %f2; add.f32 %f3, %f3, %f4; add.f32 %f1, %f1, %f3;
  add.f32 %f1, %f1, %m0;  add.f32 %f1, %f1, %m1;  add.f32 %f1, %f1, %m2;
  add.f32 %f1, %f1, %m3;  add.f32 %f1, %f1, %m4;  add.f32 %f1, %f1, %m5;
  add.f32 %f1, %f1, %m6;  add.f32 %f1, %f1, %m7;  add.f32 %f1, %f1, %m8;
  add.f32 %f1, %f1, %m9;  add.f32 %f1, %f1, %m10;  add.f32 %f1, %f1, %m11;
  add.f32 %f1, %f1, %m12;  add.f32 %f1, %f1, %m13;  add.f32 %f1, %f1, %m14;
  add.f32 %f1, %f1, %m15;  add.f32 %f1, %f1, %m16;  add.f32 %f1, %f1, %m17;
  add.f32 %f1, %f1, %m18;  add.f32 %f1, %f1, %m19;  add.f32 %f1, %f1, %m20;
  add.f32 %f1, %f1, %m21;  add.f32 %f1, %f1, %m22;  add.f32 %f1, %f1, %m23;
  st.global.f32 [%d], %f1;
  ret;
}
)";

// A load of known length: tensor cores and fused multiply-adds on every SM, no memory.
class Burner {
 public:
  Burner() {
    const std::string names[] = {"libcuda.so.1"};
    cuda_ = SharedLibrary::open_first(names);
    if (!cuda_.is_open()) throw std::runtime_error(cuda_.reason());
    int device = 0;
    void* module = nullptr;
    call<unsigned>("cuInit", 0u);
    call<int*, int>("cuDeviceGet", &device, 0);
    call<char*, int, int>("cuDeviceGetPCIBusId", pci_id_, 32, device);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context_, device);
    use();
    call<void**, const void*>("cuModuleLoadData", &module, kBurnPtx);
    call<void**, void*, const char*>("cuModuleGetFunction", &function_, module, "burn");
    call<unsigned long long*, std::size_t>("cuMemAlloc_v2", &out_, 256);
    for (void*& event : events_) call<void**, unsigned>("cuEventCreate", &event, 0u);
    launch(1000, 20);
    const double ms = launch(10000, 20);
    rounds_ = static_cast<unsigned>(10000 / ms * 20);  // a launch takes about a millisecond
  }

  const char* pci_id() const { return pci_id_; }
  void use() { call<void*>("cuCtxSetCurrent", context_); }

  // Milliseconds that `launches` launches of about a millisecond took, by CUDA events.
  double burn(int launches) { return launch(rounds_, launches); }

 private:
  double launch(unsigned rounds, int launches) {
    float ms = 0;
    void* arguments[] = {&rounds, &out_};
    call<void*, void*>("cuEventRecord", events_[0], nullptr);
    for (int i = 0; i < launches; ++i) {
      call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
           void**, void**>("cuLaunchKernel", function_, 1056u, 1u, 1u, 256u, 1u, 1u, 0u, nullptr,
                           arguments, nullptr);
    }
    call<void*, void*>("cuEventRecord", events_[1], nullptr);
    call<void*>("cuEventSynchronize", events_[1]);
    call<float*, void*, void*>("cuEventElapsedTime", &ms, events_[0], events_[1]);
    return ms;
  }

  template <typename... Parameters>
  void call(const char* name, Parameters... arguments) {
    auto* function = reinterpret_cast<int (*)(Parameters...)>(cuda_.symbol(name));
    const int status = function == nullptr ? -1 : function(arguments...);
    if (status != 0) throw std::runtime_error(fmt::format("{}: {}", name, status));
  }

  SharedLibrary cuda_;
  char pci_id_[32] = {};
  void* context_ = nullptr;
  void* function_ = nullptr;
  void* events_[2] = {};
  unsigned long long out_ = 0;
  unsigned rounds_ = 1000;
};

// Burns on its own thread for as long as it lives.
class Load {
 public:
  explicit Load(Burner& burner)
      : thread_([this, &burner] {
          burner.use();
          while (!stop_) burner.burn(50);
        }) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  }
  ~Load() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

struct Bench {
  nvml::Device card;
  sensors::SystemClock clock;

  std::unique_ptr<Meter> meter(Gauge gauge) {
    sensors::MeterSet set = nvml::open_meter(card, gauge, clock);
    return set.empty() ? nullptr : std::move(set.meters[0]);
  }

  // Microseconds a read, and how often the value changes.
  Json gauge(const nvml::GaugeInfo& info) {
    sensors::MeterSet set = nvml::open_meter(card, info.gauge, clock);
    if (set.empty()) return {{"works", false}, {"reason", set.status.reason}};
    const bool activity = info.gauge >= Gauge::sm_active;  // has a value each tenth of a second
    std::vector<double> cost_us;
    double value = NAN;
    const double begin = monotonic_s();
    for (int i = 0; i < 200 && monotonic_s() - begin < (activity ? 0.6 : 0.3); ++i) {
      if (activity) clock.sleep_s(0.11);
      const double before = monotonic_s();
      const auto reading = set.meters[0]->read();
      cost_us.push_back((monotonic_s() - before) * 1e6);
      if (reading) value = reading->value;
    }
    return {{"works", true}, {"value", value}, {"cost_us", spread(cost_us)}};
  }

  // Milliseconds between changes of a value.
  Json ticks(Gauge gauge, double seconds) {
    auto one = meter(gauge);
    if (!one) return nullptr;
    std::vector<double> between_ms, steps;
    double changed = 0;
    std::optional<double> last;
    const double begin = monotonic_s();
    while (monotonic_s() - begin < seconds) {
      const auto reading = one->read();
      if (reading && last && reading->value != *last) {
        if (changed > 0) between_ms.push_back((reading->time_s - changed) * 1e3);
        changed = reading->time_s;
        steps.push_back(reading->value - *last);
      }
      if (reading) last = reading->value;
      if (gauge != Gauge::energy) std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    return {{"between_ms", spread(between_ms)},
            {"mean_ms", between_ms.empty() ? Json() : Json(mean(between_ms))},
            {"step", spread(steps)}};
  }

  // Watts of several windows one after the other.
  Json windows(int count, double seconds, bool aligned) {
    auto counter = meter(Gauge::energy);
    if (!counter) return nullptr;
    std::vector<double> watts, bound_pct, reads;
    for (int i = 0; i < count; ++i) {
      sensors::EnergyWindow window = aligned ? sensors::EnergyWindow({counter.get()}, clock)
                                             : sensors::EnergyWindow({counter.get()});
      clock.sleep_s(0.0137 * i);
      window.begin();
      clock.sleep_s(seconds);
      const sensors::Energy energy = window.end();
      if (!energy.energy_j) return energy.reason;
      watts.push_back(energy.power_w);
      bound_pct.push_back(100 * energy.uncertainty_j / *energy.energy_j);
      reads.push_back(energy.reads);
    }
    return {{"seconds", seconds},
            {"power_w", spread(watts)},
            {"bound_pct", spread(bound_pct)},
            {"reads", spread(reads)}};
  }

  // One long window beside a sampler of instant power: two estimators of the same watts.
  Json agreement(double seconds) {
    auto counter = meter(Gauge::energy), instant = meter(Gauge::power);
    auto average = meter(Gauge::power_average), capped = meter(Gauge::power_capped);
    if (!counter || !instant || !average || !capped) return nullptr;
    sensors::EnergyWindow window({counter.get()}, clock);
    sensors::Sampler sampler({instant.get(), average.get()}, 0.05, 1 << 16);
    const Reading capped_before = *capped->read();
    window.begin();
    sampler.start();
    clock.sleep_s(seconds);
    sampler.stop();
    const sensors::Energy energy = window.end();
    const Reading capped_after = *capped->read();
    if (!energy.energy_j) return energy.reason;
    std::vector<double> values[2];
    for (const auto& sample : sampler.drain()) {
      values[sample.meter].push_back(sample.reading.value);
    }
    const sensors::ReadingCost cost = sampler.cost();
    return {{"seconds", energy.seconds},
            {"energy_j", *energy.energy_j},
            {"uncertainty_j", energy.uncertainty_j},
            {"counter_w", energy.power_w},
            {"instant_mean_w", mean(values[0])},
            {"instant_w", spread(values[0])},
            {"average_mean_w", mean(values[1])},
            {"counter_over_instant", energy.power_w / mean(values[0])},
            {"power_capped_pct", 100 * (capped_after.value - capped_before.value) /
                                     (capped_after.time_s - capped_before.time_s)},
            {"sampler_rounds", cost.rounds},
            {"sampler_share_pct", 100 * cost.share()}};
  }

  // Kernel time with nothing read, with a sampler at work, and with the energy counter read without
  // pause: in turns, since the card warms up.
  Json disturbance(Burner& burner, int turns) {
    auto counter = meter(Gauge::energy), power = meter(Gauge::power);
    auto sm_clock = meter(Gauge::sm_clock), heat = meter(Gauge::temperature);
    if (!counter || !power || !sm_clock || !heat) return nullptr;
    std::vector<double> quiet, sampled, hammered, share;
    burner.burn(1000);
    for (int i = 0; i < turns; ++i) {
      quiet.push_back(burner.burn(500));
      sensors::Sampler sampler({power.get(), sm_clock.get(), heat.get()}, 0.05, 1 << 16);
      sampler.start();
      sampled.push_back(burner.burn(500));
      sampler.stop();
      share.push_back(100 * sampler.cost().share());
      std::atomic<bool> stop = false;
      std::thread hammer([&] {
        while (!stop) counter->read();
      });
      hammered.push_back(burner.burn(500));
      stop = true;
      hammer.join();
    }
    return {{"quiet_ms", spread(quiet)},
            {"with_sampler_ms", spread(sampled)},
            {"sampler_share_pct", spread(share)},
            {"counter_read_without_pause_ms", spread(hammered)},
            {"sampler_costs_pct", 100 * (median(sampled) / median(quiet) - 1)},
            {"counter_costs_pct", 100 * (median(hammered) / median(quiet) - 1)}};
  }

  // Age of field 186 by its own time stamp, in milliseconds.
  Json time_stamps() {
    std::vector<double> age_ms, latency_us;
    for (int i = 0; i < 50; ++i) {
      nvml::FieldValue field{};
      field.field = 186;
      if (!card.api().field_values(card.handle(), 1, &field)) return nullptr;
      const double now_us = std::chrono::duration<double, std::micro>(
                                std::chrono::system_clock::now().time_since_epoch())
                                .count();
      age_ms.push_back((now_us - static_cast<double>(field.timestamp_us)) * 1e-3);
      latency_us.push_back(static_cast<double>(field.latency_us));
      clock.sleep_s(0.013);
    }
    return {{"age_ms", spread(age_ms)}, {"latency_us", spread(latency_us)}};
  }

  Json processes() {
    const auto listed = card.compute_processes();
    if (!listed.value) return listed.status.reason;
    return {{"count", listed.value->pids.size()},
            {"own_listed", listed.value->own},
            {"foreign", listed.value->foreign(true)}};
  }
};

int run() {
  Json json;
  const double begin = monotonic_s();
  const nvml::OpenedLibrary opened = nvml::open_library();
  json["open_library_ms"] = (monotonic_s() - begin) * 1e3;
  if (!opened.library) throw std::runtime_error(opened.status.reason);
  Burner burner;
  const auto found = nvml::find_device(opened.library, burner.pci_id());
  if (!found.value) throw std::runtime_error(found.status.reason);
  Bench bench{*found.value, {}};
  const nvml::DeviceFacts& facts = bench.card.facts();
  const nvml::DeviceSettings settings = bench.card.settings();
  json["created"] = utc_now();
  json["card"] = {{"name", facts.name},
                  {"driver", facts.driver},
                  {"pci_id_cuda", burner.pci_id()},
                  {"pci_id_nvml", facts.pci_id},
                  {"power_limit_w", settings.power_limit_w.value_or(NAN)},
                  {"persistence", settings.persistence.value_or(false)},
                  {"mig", settings.mig}};
  json["processes_with_context"] = bench.processes();
  for (const nvml::GaugeInfo& info : nvml::gauges()) json["idle"][info.name] = bench.gauge(info);
  json["time_stamps"] = bench.time_stamps();
  json["disturbance"] = bench.disturbance(burner, 5);
  {
    const Load load(burner);
    for (const nvml::GaugeInfo& info : nvml::gauges()) json["load"][info.name] = bench.gauge(info);
    json["ticks"]["energy"] = bench.ticks(Gauge::energy, 3);
    json["ticks"]["power"] = bench.ticks(Gauge::power, 2);
    json["ticks"]["power_average"] = bench.ticks(Gauge::power_average, 2);
    json["ticks"]["power_capped"] = bench.ticks(Gauge::power_capped, 1);
    json["ticks"]["sm_clock"] = bench.ticks(Gauge::sm_clock, 1);
    json["ticks"]["temperature"] = bench.ticks(Gauge::temperature, 1);
    json["aligned"] = bench.windows(6, 0.7, true);
    json["not_aligned"] = bench.windows(6, 0.75, false);
    json["agreement"] = bench.agreement(10);
  }
  fmt::print("{}\n", json.dump(2));
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "nvml_costs: {}\n", error.what());
    return 1;
  }
}
