#include "sensors/nvml/gpm.h"

#include <string>
#include <utility>

namespace dfa::nvml {

Gpm::Gpm(const Device& device, std::uint32_t metric, const Clock& clock)
    : device_(device),
      metric_(metric),
      clock_(clock),
      last_{std::nullopt,
            Verdict::no("no value yet: GPM compares samples a tenth of a second apart")} {}

Gpm::~Gpm() {
  if (before_ != nullptr) device_.api().gpm_free(before_);
  if (latest_ != nullptr) device_.api().gpm_free(latest_);
}

Verdict Gpm::start() {
  GpmSupport support;
  const Verdict asked = device_.api().gpm_support(device_.handle(), &support);
  if (!asked) return asked;
  if (support.supported == 0) return Verdict::no("this GPU has no GPM counters (Hopper and later)");
  const Verdict allocated = allocate();
  return allocated ? sample() : allocated;
}

Verdict Gpm::allocate() {
  if (device_.api().gpm_free.address == nullptr) return device_.api().gpm_free(nullptr);
  for (GpmSampleHandle* handle : {&before_, &latest_}) {
    const Verdict allocated = device_.api().gpm_alloc(handle);
    if (!allocated) return allocated;
  }
  return Verdict::yes();
}

Verdict Gpm::sample() {
  std::swap(before_, latest_);
  sampled_s_ = clock_.now_s();
  return device_.api().gpm_sample(device_.handle(), latest_);
}

Value<double> Gpm::read() {
  if (clock_.now_s() - sampled_s_ < kPeriod) return last_;
  const Verdict sampled = sample();
  last_ = sampled ? between_samples() : Value<double>{std::nullopt, sampled};
  return last_;
}

Value<double> Gpm::between_samples() const {
  GpmMetrics metrics;
  metrics.count = 1;
  metrics.first = before_;
  metrics.second = latest_;
  metrics.metrics[0].id = metric_;
  const Verdict computed = device_.api().gpm_metrics(&metrics);
  if (!computed) return {std::nullopt, computed};
  const GpmMetric& metric = metrics.metrics[0];
  if (metric.status == 0) return {metric.value, {}};
  return {std::nullopt,
          Verdict::no("GPM metric " + std::to_string(metric_) + ": " + status_text(metric.status))};
}

}  // namespace dfa::nvml
