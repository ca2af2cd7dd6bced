#include "monitor/metrics.h"

#include <fmt/format.h>

#include <string_view>

namespace dfa::monitor {
namespace {

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

template <Gauge gauge>
std::optional<double> growth(const CardNow& card) {
  return growth_of(card, gauge);
}

constexpr Metric kMetrics[] = {
    {"DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw, mean of a second (in W).", 1,
     of<Gauge::power_average>},
    {"DCGM_FI_DEV_POWER_USAGE_INSTANT", "gauge", "Power draw, last 25 ms of 100 (in W).", 1,
     of<Gauge::power>},
    {"DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power limit in force (in W).", 1,
     [](const CardNow& card) { return card.settings.power_limit_w; }},
    {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since this exporter began (in mJ).",
     1e3, growth<Gauge::energy>},
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
     growth<Gauge::power_capped>},
    {"DCGM_FI_DEV_THERMAL_VIOLATION", "counter",
     "Time held down by heat since this exporter began (in us).", 1e6, growth<Gauge::too_hot>},
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

// Empty, which to Prometheus is none, where it is not known.
std::string numbered(const char* prefix, const std::optional<int>& number) {
  return number ? fmt::format("{}{}", prefix, *number) : std::string();
}

std::string labels_of(const CardNow& card, const std::string& hostname) {
  const sensors::CardFacts& facts = card.facts;
  return fmt::format(
      "gpu=\"{}\",UUID=\"{}\",pci_bus_id=\"{}\",device=\"{}\",modelName=\"{}\",Hostname=\"{}\"",
      numbered("", facts.index), escaped(facts.uuid), escaped(facts.pci_id),
      numbered("nvidia", facts.minor), escaped(facts.name), escaped(hostname));
}

std::string header(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

// A page for all cards: a header and lines a metric, and nothing where it has no line.
class Page {
 public:
  Page(std::span<const CardNow> cards, const std::string& hostname)
      : cards_(cards), hostname_(hostname) {}

  void add(const Metric& metric) {
    add(metric, [&](const CardNow& card) {
      const auto value = metric.value(card);
      return value ? line(metric.name, card, "", *value * metric.factor) : std::string();
    });
  }

  template <typename LinesOf>
  void add(const Metric& metric, const LinesOf& lines_of) {
    std::string lines;
    for (const CardNow& card : cards_) lines += lines_of(card);
    if (!lines.empty()) text_ += header(metric.name, metric.type, metric.help) + lines;
  }

  std::string line(const char* name, const CardNow& card, const std::string& more,
                   double value) const {
    return fmt::format("{}{{{}{}}} {}\n", name, labels_of(card, hostname_), more, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::span<const CardNow> cards_;
  const std::string& hostname_;
  std::string text_;
};

std::string because(const std::string& why) { return ",reason=\"" + escaped(why) + "\""; }
std::string of_sensor(const CardNow& card, Gauge gauge, const std::string& why) {
  return fmt::format(",sensor=\"{}\"", sensor_of(card, gauge)) + because(why);
}

constexpr Metric kSensorMissing{"dfa_sensor_missing", "gauge",
                                "A sensor that said nothing, and why.", 1, nullptr};
constexpr Metric kCardMissing{"dfa_card_missing", "gauge",
                              "A GPU that is counted and does not answer, and why.", 1, nullptr};
constexpr Metric kBreaks{"dfa_counter_breaks", "gauge",
                         "How often a counter broke off, and why the last time: what it counted "
                         "around that is in no sum.",
                         1, nullptr};

}  // namespace

std::string to_metrics(std::span<const CardNow> cards, const std::string& hostname) {
  Page page(cards, hostname);
  for (const Metric& metric : kMetrics) page.add(metric);
  page.add(kSensorMissing, [&](const CardNow& card) {
    std::string lines;
    for (const auto& [gauge, why] : card.missing) {
      lines += page.line(kSensorMissing.name, card, of_sensor(card, gauge, why), 1);
    }
    return lines;
  });
  page.add(kBreaks, [&](const CardNow& card) {
    std::string lines;
    for (const auto& [gauge, grown] : card.growth) {
      if (grown.breaks == 0) continue;
      lines +=
          page.line(kBreaks.name, card, of_sensor(card, gauge, grown.break_reason), grown.breaks);
    }
    return lines;
  });
  page.add(kCardMissing, [&](const CardNow& card) {
    return card.status ? "" : page.line(kCardMissing.name, card, because(card.status.reason), 1);
  });
  return page.text();
}

}  // namespace dfa::monitor
