#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contract/clock.h"
#include "dfa/error.h"
#include "sensors/gpu/gauge.h"
#include "sensors/meter_set.h"

namespace dfa::sensors {

// What a call gave, or why it gave nothing.
template <typename T>
struct Value {
  std::optional<T> value;
  Verdict status;
};

// What does not change while a program runs. Empty where the library does not tell.
struct CardFacts {
  std::string name;          // "NVIDIA H200"
  std::string uuid;          // "GPU-…"
  std::string pci_id;        // "0000:3b:00.0", lower case
  std::string driver;        // "580.159.04"
  std::optional<int> index;  // in the library's order, which is neither CUDA's nor that of a choice
  std::optional<int> minor;  // of its file, /dev/nvidia0
};

// What may change while a program runs. Empty where the library does not tell.
struct CardSettings {
  std::optional<double> power_limit_w;
  std::optional<bool> persistence;
  bool mig = false;  // split into instances: power and energy are of the whole card
};

// Programs with a compute context on the card.
struct ComputeProcesses {
  std::vector<std::uint32_t> pids;
  bool own = false;  // this process is among them

  // How many belong to others. A container may show this process under a number that it does not
  // know itself: `own_context` says that it has a context, and one of the list is taken for it.
  int foreign(bool own_context) const;
};

// One card, as the library of its maker shows it.
class GpuCard {
 public:
  virtual ~GpuCard() = default;

  virtual const CardFacts& facts() const = 0;
  virtual CardSettings settings() const = 0;  // read anew
  virtual Value<ComputeProcesses> compute_processes() const = 0;
  // Clocks that its multiprocessors can be locked to, the lowest first.
  virtual Value<std::vector<double>> sm_clocks_hz() const = 0;

  // What it may be asked for, and a meter of one of them: at most one, or why there is none.
  virtual std::span<const GaugeInfo> gauges() const = 0;
  virtual MeterSet open(Gauge gauge, const Clock& clock) const = 0;
};

using CardPtr = std::shared_ptr<const GpuCard>;

// A library that tells of cards: one a maker.
class GpuSource {
 public:
  virtual ~GpuSource() = default;

  virtual std::string description() const = 0;  // "libnvidia-ml.so.1, NVML 13.580.159.04"

  // By a PCI bus id as CUDA tells it ("0000:3b:00.0") or a UUID; never by index, as libraries count
  // differently.
  virtual Value<CardPtr> find(const std::string& id) const = 0;
  // At a place of list(); a reason where it is counted but does not answer.
  virtual Value<CardPtr> at(int place) const = 0;
  // Every card that it counts, in its order: each of them, or why it does not answer.
  virtual Value<std::vector<Value<CardPtr>>> list() const = 0;
};

}  // namespace dfa::sensors
