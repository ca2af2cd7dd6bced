#include "monitor/metrics.h"

#include <fmt/format.h>

#include <string_view>

namespace dfa::monitor {
namespace {

using nvml::Gauge;

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  double factor;  // from our unit to the metric's
  std::optional<double> (*value)(const CardNow&);
};

template <Gauge gauge>
std::optional<double> of(const CardNow& card) {
  return value_of(card, gauge);
}

constexpr Metric kMetrics[] = {
    {"DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw, mean of a second (in W).", 1,
     of<Gauge::power_average>},
    {"DCGM_FI_DEV_POWER_USAGE_INSTANT", "gauge", "Power draw, last 25 ms of 100 (in W).", 1,
     of<Gauge::power>},
    {"DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power limit in force (in W).", 1,
     [](const CardNow& card) { return card.facts.power_limit_w; }},
    {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since this exporter began (in mJ).",
     1e3, [](const CardNow& card) { return card.energy_j; }},
    {"DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", 1, of<Gauge::temperature>},
    {"DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", 1,
     of<Gauge::memory_temperature>},
    {"DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", 1e-6, of<Gauge::sm_clock>},
    {"DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", 1e-6,
     of<Gauge::memory_clock>},
    {"DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", 1, of<Gauge::utilization>},
    {"DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", 1,
     of<Gauge::memory_utilization>},
    {"DCGM_FI_DEV_FB_USED", "gauge", "Frame buffer memory used (in MiB).", 1.0 / (1 << 20),
     of<Gauge::memory_used>},
    {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Clock event reasons, a bit each.", 1,
     of<Gauge::clock_events>},
    {"DCGM_FI_DEV_POWER_VIOLATION", "counter",
     "Time held down by the power limit since this exporter began (in us).", 1e6,
     [](const CardNow& card) { return card.power_capped_s; }},
    {"DCGM_FI_DEV_THERMAL_VIOLATION", "counter",
     "Time held down by heat since this exporter began (in us).", 1e6,
     [](const CardNow& card) { return card.too_hot_s; }},
    {"DCGM_FI_PROF_SM_ACTIVE", "gauge", "Share of time an SM had a warp (0 to 1).", 0.01,
     of<Gauge::sm_active>},
    {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Share of time the tensor pipe was busy (0 to 1).",
     0.01, of<Gauge::tensor_active>},
    {"DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of time the memory was busy (0 to 1).", 0.01,
     of<Gauge::dram_active>},
};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string labels_of(const CardNow& card, const std::string& hostname) {
  return fmt::format(
      "gpu=\"{0}\",UUID=\"{1}\",pci_bus_id=\"{2}\",device=\"nvidia{0}\",modelName=\"{3}\","
      "Hostname=\"{4}\"",
      card.index, escaped(card.facts.uuid), escaped(card.facts.pci_id), escaped(card.facts.name),
      escaped(hostname));
}

std::string header(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

std::string to_metrics(std::span<const CardNow> cards, const std::string& hostname) {
  std::string text;
  for (const Metric& metric : kMetrics) {
    std::string lines;
    for (const CardNow& card : cards) {
      const auto value = metric.value(card);
      if (!value) continue;
      lines += fmt::format("{}{{{}}} {}\n", metric.name, labels_of(card, hostname),
                           *value * metric.factor);
    }
    if (!lines.empty()) text += header(metric.name, metric.type, metric.help) + lines;
  }
  std::string lines;
  for (const CardNow& card : cards) {
    for (const auto& [gauge, why] : card.missing) {
      lines += fmt::format("dfa_sensor_missing{{{},sensor=\"{}\",reason=\"{}\"}} 1\n",
                           labels_of(card, hostname), nvml::info_of(gauge).name, escaped(why));
    }
  }
  if (!lines.empty()) {
    text += header("dfa_sensor_missing", "gauge", "A sensor that said nothing, and why.") + lines;
  }
  return text;
}

}  // namespace dfa::monitor
