#include "monitor/columns.h"

namespace dfa::monitor {
namespace {

template <Gauge gauge>
std::optional<double> of(const CardNow& card) {
  return value_of(card, gauge);
}

template <Gauge gauge>
std::optional<double> growth(const CardNow& card) {
  return growth_of(card, gauge);
}

template <Gauge gauge>
std::optional<double> rate(const CardNow& card) {
  return rate_of(card, gauge);
}

constexpr Column kColumns[] = {
    {"power_average_w",
     {"DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw, mean of a second (in W)."},
     1,
     of<Gauge::power_average>},
    {"power_w",
     {"DCGM_FI_DEV_POWER_USAGE_INSTANT", "gauge", "Power draw, last 25 ms of 100 (in W)."},
     1,
     of<Gauge::power>},
    {"power_limit_w",
     {"DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power limit in force (in W)."},
     1,
     [](const CardNow& card) { return card.settings.power_limit_w; }},
    {"energy_j",
     {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter",
      "Energy since this exporter began (in mJ)."},
     1e3,
     growth<Gauge::energy>},
    {"temp_c",
     {"DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."},
     1,
     of<Gauge::temperature>},
    {"memory_temp_c",
     {"DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."},
     1,
     of<Gauge::memory_temperature>},
    {"sm_clock_hz",
     {"DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."},
     1e-6,
     of<Gauge::sm_clock>},
    {"memory_clock_hz",
     {"DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."},
     1e-6,
     of<Gauge::memory_clock>},
    {"utilization_pct",
     {"DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."},
     1,
     of<Gauge::utilization>},
    {"memory_utilization_pct",
     {"DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."},
     1,
     of<Gauge::memory_utilization>},
    {"memory_used_bytes",
     {"DCGM_FI_DEV_FB_USED", "gauge", "Frame buffer memory used (in MiB)."},
     1.0 / (1 << 20),
     of<Gauge::memory_used>},
    {"clock_event_bits",
     {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Clock event reasons, a bit each."},
     1,
     of<Gauge::clock_events>},
    {"power_capped_s",
     {"DCGM_FI_DEV_POWER_VIOLATION", "counter",
      "Time held down by the power limit since this exporter began (in us)."},
     1e6,
     growth<Gauge::power_capped>},
    {"too_hot_s",
     {"DCGM_FI_DEV_THERMAL_VIOLATION", "counter",
      "Time held down by heat since this exporter began (in us)."},
     1e6,
     growth<Gauge::too_hot>},
    {"sm_active_pct",
     {"DCGM_FI_PROF_SM_ACTIVE", "gauge", "Share of time an SM had a warp (0 to 1)."},
     0.01,
     of<Gauge::sm_active>},
    {"tensor_active_pct",
     {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge",
      "Share of time the tensor pipe was busy (0 to 1)."},
     0.01,
     of<Gauge::tensor_active>},
    {"dram_active_pct",
     {"DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of time the memory was busy (0 to 1)."},
     0.01,
     of<Gauge::dram_active>},
    {"nvlink_sent_bytes_per_s",
     {"DCGM_FI_PROF_NVLINK_TX_BYTES", "gauge",
      "Data sent over NVLink, mean of the last half second or more (in B/s)."},
     1,
     rate<Gauge::nvlink_sent>},
    {"nvlink_received_bytes_per_s",
     {"DCGM_FI_PROF_NVLINK_RX_BYTES", "gauge",
      "Data received over NVLink, mean of the last half second or more (in B/s)."},
     1,
     rate<Gauge::nvlink_received>},
    {"nvlink_sent_bytes",
     {"dfa_nvlink_sent_bytes", "counter",
      "Data sent over NVLink since this exporter began (in B)."},
     1,
     growth<Gauge::nvlink_sent>},
    {"nvlink_received_bytes",
     {"dfa_nvlink_received_bytes", "counter",
      "Data received over NVLink since this exporter began (in B)."},
     1,
     growth<Gauge::nvlink_received>},
};

}  // namespace

std::span<const Column> columns() { return kColumns; }

}  // namespace dfa::monitor
