#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sensors/gpu/card.h"

// Where everybody outside of this folder asks for the sensors of GPUs. A maker's library is one
// entry of registry.cpp.
namespace dfa::sensors {

class GpuSensors {
 public:
  // Opens every library that is here. Never throws; status() says why there is none.
  GpuSensors();

  const Verdict& status() const { return status_; }
  std::vector<std::string> descriptions() const;

  Value<CardPtr> find(const std::string& id) const;
  Value<CardPtr> at(int place) const;  // of list()
  Value<std::vector<Value<CardPtr>>> list() const;

 private:
  std::vector<std::shared_ptr<const GpuSource>> sources_;
  Verdict status_;
};

// One card by its PCI bus id or UUID, with the library opened for it.
Value<CardPtr> find_card(const std::string& id);

// A meter of it, or why there is none.
MeterSet open_meter(const Value<CardPtr>& card, Gauge gauge, const Clock& clock);

}  // namespace dfa::sensors
