#pragma once

#include <memory>

#include "contract/clock.h"
#include "sensors/nvml/device.h"

namespace dfa::nvml {

// Activity by the card's profiling counters (Hopper and later): the mean between two samples, which
// must be at least a tenth of a second apart. Not for two threads at once.
class Gpm {
 public:
  static constexpr double kPeriod = 0.1;

  // Numbers of the metrics.
  static constexpr std::uint32_t kSmActive = 2;
  static constexpr std::uint32_t kTensorActive = 5;
  static constexpr std::uint32_t kDramActive = 10;

  Gpm(const Device& device, std::uint32_t metric, const Clock& clock);
  ~Gpm();
  Gpm(const Gpm&) = delete;
  Gpm& operator=(const Gpm&) = delete;

  // Takes the first sample; why there is none.
  Verdict start();

  // Percent between the last two samples. Takes a new one when the last is a period old; before
  // that, the value of the last pair. Requires start().
  Value<double> read();

 private:
  Verdict allocate();
  Verdict sample();
  Value<double> between_samples() const;

  Device device_;
  std::uint32_t metric_;
  const Clock& clock_;
  GpmSampleHandle before_ = nullptr;
  GpmSampleHandle latest_ = nullptr;
  double sampled_s_ = 0;
  Value<double> last_;
};

}  // namespace dfa::nvml
